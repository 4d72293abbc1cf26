package drukbox_test

import (
	"context"
	"os"
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
// its toxics.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))
}

// patience is for what takes milliseconds.
const patience = 30 * time.Second

func TestSuite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Gateway: true, Pool: 1})
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open: func(t *testing.T) sandbox.Provider { return w.open(t, nil) },
		Ceiling: func(t *testing.T, bytes int64) sandbox.Provider {
			return w.open(t, func(c *drukbox.Config) { c.OutputCeiling = bytes })
		},
		GivesBack: true,
	})
}

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
