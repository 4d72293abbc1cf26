package drukbox_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
	"executor/internal/sandbox/sandboxtest"
)

// Toxiproxy leaves goroutines of its own behind where a connection is cut under
// its toxics, or in the middle of something.
func TestMain(m *testing.M) {
	sandboxtest.Executor(func(world string) (sandbox.Provider, error) {
		url, keys, _ := strings.Cut(world, " ")
		return drukbox.New(drukbox.Config{URL: url, KeyDir: keys, Token: drukboxtest.Token, Machine: "here"})
	})
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/stream.(*ChanWriter).Write"))
}

// patience is for what takes milliseconds.
const patience = 30 * time.Second

func TestSuite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Gateway: true, Pool: 1})
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open:  func(t *testing.T) sandbox.Provider { return w.open(t, nil) },
		World: w.server.URL + " " + w.keys,
		Lined: func(t *testing.T) (sandbox.Provider, sandboxtest.Line) {
			w := newWorld(t, drukboxtest.Options{Proxied: true})
			return inWorld{w.open(t, nil), w}, line{w.server}
		},
		SmallDisk: func(t *testing.T) sandbox.Provider {
			w := newWorld(t, drukboxtest.Options{Disk: 4 << 20})
			return inWorld{w.open(t, nil), w}
		},
		Processes: func(t *testing.T, p sandbox.Provider, host sandbox.Host) int {
			if other, ok := p.(inWorld); ok {
				return other.server.Processes(t, host.ID)
			}
			return w.server.Processes(t, host.ID)
		},
		Left: func(*testing.T) []string { return w.left() },
		Ceiling: func(t *testing.T, bytes int64) sandbox.Provider {
			return w.open(t, func(c *drukbox.Config) { c.OutputCeiling = bytes })
		},
		GivesBack: true,
	})
}

// inWorld is a provider of a world that is not the suite's.
type inWorld struct {
	*drukbox.Provider
	*world
}

// line is the way to a world.
type line struct{ *drukboxtest.Server }

func (l line) Cut()                  { l.CutAll() }
func (l line) Freeze() (thaw func()) { return l.FreezeAll() }

// world is a control plane and one machine's directory for keys.
type world struct {
	*testing.T
	server *drukboxtest.Server
	keys   string
	log    *logs
}

func newWorld(t *testing.T, opts drukboxtest.Options) *world {
	return &world{T: t, server: drukboxtest.New(t, opts), keys: t.TempDir(), log: &logs{}}
}

// open is the provider as another executor on the machine would have it.
func (w *world) open(t testing.TB, change func(*drukbox.Config)) *drukbox.Provider {
	t.Helper()
	cfg := drukbox.Config{
		URL: w.server.URL, Token: drukboxtest.Token, KeyDir: w.keys, Machine: "here", Lease: time.Hour,
		Timeouts: drukbox.Timeouts{FirstWait: 20 * time.Millisecond}, Log: zerolog.New(w.log),
	}
	if change != nil {
		change(&cfg)
	}
	p, err := drukbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client is a sandbox.Client of the provider, with a ledger.
func (w *world) client(p *drukbox.Provider) (*sandbox.Client, *sandboxtest.Ledger) {
	return sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.New(w.log), p), sandboxtest.NewLedger()
}

// noKeys checks that nothing of any host is left on our disk.
func (w *world) noKeys() {
	w.Helper()
	left, err := os.ReadDir(w.keys)
	if err != nil || len(left) > 0 {
		w.Errorf("left in the directory for keys: %v, %v", left, err)
	}
}

// left is what there is still: hosts that were given out, and what we keep for
// them.
func (w *world) left() (left []string) {
	w.server.Janitor()
	for _, row := range w.server.Rows() {
		if !row.Pooled {
			left = append(left, "host "+row.ID+", "+row.Status)
		}
	}
	keys, err := os.ReadDir(w.keys)
	if err != nil {
		w.Error(err)
	}
	for _, k := range keys {
		left = append(left, k.Name())
	}
	return left
}
