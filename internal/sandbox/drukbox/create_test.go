package drukbox_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
)

var spec = sandbox.HostSpec{Key: sandbox.StepKey("run", "step"), RunID: "run"}

func (w *world) create(p *drukbox.Provider) sandbox.Host {
	w.Helper()
	host, err := p.Create(soon(w), spec)
	if err != nil {
		w.Fatal("create:", err)
	}
	return host
}

// works checks that a command can be run in a host.
func (w *world) works(p *drukbox.Provider, host sandbox.Host) sandbox.Conn {
	w.Helper()
	conn, err := p.Dial(soon(w), host)
	if err != nil {
		w.Fatal("dial:", err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	if exit, err := conn.Exec(soon(w), sandbox.Command{Argv: []string{"true"}}, sandbox.Stdio{}); err != nil || !exit.Success() {
		w.Fatalf("exec: %+v, %v", exit, err)
	}
	return conn
}

// only checks that one row is left, and that it is the host's.
func (w *world) only(host sandbox.Host) {
	w.Helper()
	rows := w.server.Rows()
	if len(rows) != 1 || rows[0].ID != host.ID {
		w.Errorf("rows %+v, want %s alone", rows, host.ID)
	}
}

// loseAnswer makes the control plane do what the first create asks for, and
// the answer get lost.
func (w *world) loseAnswer() {
	var once sync.Once
	w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) (took bool) {
		if r.Method == http.MethodPost && r.URL.Path == "/hosts" {
			once.Do(func() {
				next.ServeHTTP(httptest.NewRecorder(), r)
				took = true
				if conn, _, err := rw.(http.Hijacker).Hijack(); err == nil {
					_ = conn.Close()
				}
			})
		}
		return took
	})
}

func TestALostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	// An earlier create may leave a connection that could be used again.
	earlier, err := p.Create(soon(t), sandbox.HostSpec{Key: "earlier:key"})
	if err == nil {
		err = p.Delete(soon(t), earlier.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.loseAnswer()
	_, err = p.Create(soon(t), spec)
	if made := w.server.Made() - 1; made != 1 {
		t.Errorf("one create made %d hosts", made)
	}
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxUnavailable || orUnknown(f.Outcome) != faults.Unknown {
		t.Fatalf("got %v", err)
	}
	orphan := w.server.Rows()[0].ID

	// Its private key is lost with the answer: another host is made.
	host := w.create(p)
	if host.ID == orphan {
		t.Error("a host without its key was adopted")
	}
	w.works(p, host)
	w.only(host)
}

// Nobody asks again: what is in the ledger without an id is found by the end
// of the lease that was asked for, among other tenants' hosts.
func TestALostAnswerIsReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	other := w.open(t, func(c *drukbox.Config) { c.Token, c.KeyDir = drukboxtest.OtherToken, t.TempDir() })
	theirs, err := other.Create(soon(t), sandbox.HostSpec{Key: "their:key"})
	if err != nil {
		t.Fatal(err)
	}
	p := w.open(t, nil)
	client, ledger := w.client(p)
	w.loseAnswer()
	if _, err := client.Acquire(soon(t), ledger, "drukbox", spec); !errors.Is(err, faults.SandboxProvisioning) {
		t.Fatalf("got %v", err)
	}
	live := ledger.Live()
	if len(live) != 1 || live[0].State != sandbox.Creating || len(w.server.Rows()) != 2 {
		t.Fatalf("ledger %+v, rows %+v", live, w.server.Rows())
	}
	if err := client.Delete(soon(t), ledger, live[0]); err != nil {
		t.Fatal("delete:", err)
	}
	w.only(theirs)
	w.noKeys()
}

func TestOneKeyOnTwoMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Delay: map[string]time.Duration{drukboxtest.CreatingVM: 200 * time.Millisecond}})
	here := w.open(t, nil)
	there := w.open(t, func(c *drukbox.Config) { c.KeyDir, c.Machine = t.TempDir(), "there" })
	hosts := make([]sandbox.Host, 2)
	var wg sync.WaitGroup
	for i, p := range []*drukbox.Provider{here, there} {
		wg.Go(func() {
			var err error
			if hosts[i], err = p.Create(soon(t), spec); err != nil {
				t.Error("create:", err)
			}
		})
	}
	wg.Wait()
	if w.server.Made() < 2 {
		t.Fatal("the creates did not meet")
	}
	// One machine has the key of the host that is left; the other's is gone.
	w.server.SetAhead(time.Second)
	w.server.Janitor()
	rows := w.server.Rows()
	if len(rows) != 1 {
		t.Fatalf("rows %+v", rows)
	}
	for i, p := range []*drukbox.Provider{here, there} {
		if hosts[i].ID == rows[0].ID {
			w.works(p, hosts[i])
		} else if _, err := p.Dial(soon(t), hosts[i]); !errors.Is(err, faults.SandboxNotFound) {
			t.Errorf("dial of the host that lost: %v", err)
		}
	}
}

// A replay answers with whatever is in the row.
func TestAReplayOfNoUse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*world, sandbox.Host){
		"in error": func(w *world, h sandbox.Host) { w.server.SetStatus(h.ID, drukboxtest.Failed) },
		"expired":  func(w *world, h sandbox.Host) { w.server.SetExpires(h.ID, -time.Second) },
		"no key":   func(w *world, h sandbox.Host) { _ = os.Remove(filepath.Join(w.keys, h.ID)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{})
			p := w.open(t, nil)
			old := w.create(p)
			spoil(w, old)
			host := w.create(p)
			if host.ID == old.ID {
				t.Fatal("it was adopted")
			}
			w.works(p, host)
			w.only(host)
		})
	}
	t.Run("cannot be deleted yet", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, drukboxtest.Options{})
		p := w.open(t, nil)
		host := w.create(p)
		w.server.SetStatus(host.ID, drukboxtest.CreatingVM)
		if _, err := p.Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxProvisioning {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cannot be torn down", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, drukboxtest.Options{})
		p := w.open(t, nil)
		host := w.create(p)
		w.server.SetStatus(host.ID, drukboxtest.Failed)
		w.server.FailTeardown(1)
		if _, err := p.Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxProvisioning {
			t.Errorf("got %v", err)
		}
		w.only(w.create(p))
	})
}

func TestAShortLeaseIsRenewedOnReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	w.server.SetExpires(host.ID, time.Minute)
	again := w.create(p)
	if left := time.Until(again.ExpiresAt); again.ID != host.ID || left < 50*time.Minute {
		t.Errorf("%+v, and %s are left", again, left)
	}
}

// A warm host's key is nobody's any more; a request that asks for anything is
// not given one.
func TestNoWarmHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Pool: 1})
	p := w.open(t, nil)
	w.works(p, w.create(p))
	if made, rows := w.server.Made(), w.server.Rows(); made != 2 || len(rows) != 2 {
		t.Errorf("%d hosts were made, and %d are left: want the pool's and ours", made, len(rows))
	}
}

func TestAFailedCreate(t *testing.T) {
	t.Parallel()
	const why = "ProviderCommandError: no space on the hypervisor"
	t.Run("its row is certainly ours", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, drukboxtest.Options{})
		p := w.open(t, nil)
		well, err := p.Create(soon(t), sandbox.HostSpec{Key: "another:key"}) // of ours, at the same time
		if err != nil {
			t.Fatal(err)
		}
		w.server.FailCreate(why)
		_, err = p.Create(soon(t), spec)
		if f := faults.Of(err); f == nil || f.Kind != faults.SandboxProvisioning || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v", err)
		}
		w.only(well)
	})
	for name, other := range map[string]string{"somebody else's failed alike": why, "somebody else's is well": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{})
			if other != "" {
				w.server.FailCreate(other)
			}
			theirs := w.open(t, func(c *drukbox.Config) { c.Token, c.KeyDir = drukboxtest.OtherToken, t.TempDir() })
			w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) bool {
				// Their row must not be tidied away by them.
				if r.Method == http.MethodGet && strings.HasSuffix(r.Header.Get("Authorization"), drukboxtest.OtherToken) {
					rw.WriteHeader(503)
					return true
				}
				return false
			})
			_, _ = theirs.Create(soon(t), sandbox.HostSpec{Key: "their:key"})
			w.server.FailCreate(why)
			if _, err := w.open(t, nil).Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxProvisioning {
				t.Errorf("got %v", err)
			}
			if rows := w.server.Rows(); len(rows) != 2 {
				t.Errorf("rows %+v", rows)
			}
			if !w.log.has("stays for the control plane's janitor") {
				t.Error("the log does not say so")
			}
			if deleted := slices.ContainsFunc(w.server.Requests(), func(r string) bool { return strings.HasPrefix(r, "DELETE") }); deleted {
				t.Error("something was deleted")
			}
		})
	}
}

// The row of ours is gone already, and another's is alone.
func TestAnothersFailedCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPost {
			w.server.FailCreate("theirs")
			next.ServeHTTP(httptest.NewRecorder(), r)
			rw.WriteHeader(502)
			_, _ = rw.Write([]byte(`{"detail":"ours","error_code":"PROVISIONING_FAILED"}`))
			return true
		}
		return false
	})
	if _, err := p.Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxProvisioning {
		t.Errorf("got %v", err)
	}
	if rows := w.server.Rows(); len(rows) != 1 {
		t.Errorf("rows %+v", rows)
	}
}

// A deletion that the control plane refuses for now stays in the ledger.
func TestAnEarlyDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	client, ledger := w.client(p)
	box, err := client.Acquire(soon(t), ledger, "drukbox", spec)
	if err != nil {
		t.Fatal(err)
	}
	_ = box.Close()
	id := box.Host().ID
	w.server.SetStatus(id, drukboxtest.CreatingVM)
	err = client.Delete(soon(t), ledger, box.Entry())
	if faults.Of(err).Kind != faults.SandboxConflict {
		t.Errorf("got %v", err)
	}
	w.server.SetStatus(id, drukboxtest.Active)
	w.server.FailTeardown(1)
	live := ledger.Live()
	if len(live) != 1 || live[0].State != sandbox.Releasing {
		t.Fatalf("ledger %+v", live)
	}
	if err = client.Delete(soon(t), ledger, live[0]); faults.Of(err).Kind != faults.SandboxUnavailable {
		t.Errorf("got %v", err)
	}
	if err := client.Delete(soon(t), ledger, live[0]); err != nil || len(ledger.Live()) != 0 {
		t.Errorf("%v, ledger %+v", err, ledger.Live())
	}
	w.noKeys()
}

func TestAnotherAccountsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	w.create(w.open(t, func(c *drukbox.Config) { c.Token, c.KeyDir = drukboxtest.OtherToken, t.TempDir() }))
	if _, err := w.open(t, nil).Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxConflict {
		t.Errorf("got %v", err)
	}
}

func TestKeysThatNoHeaderTakes(t *testing.T) {
	t.Parallel()
	p := at(t, "http://192.0.2.1", nil)
	for _, key := range []sandbox.Key{"", "a b", "ü", "a\n", sandbox.Key(strings.Repeat("x", 256))} {
		_, err := p.Create(t.Context(), sandbox.HostSpec{Key: key})
		if f := faults.Of(err); f.Kind != faults.SandboxInvalid || f.Outcome != faults.NotStarted {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// Cancelled while the host is being made: it is found again by its key.
func TestCancelledCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Delay: map[string]time.Duration{drukboxtest.CreatingVM: 300 * time.Millisecond}})
	p := w.open(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Create(ctx, spec); !errors.Is(err, context.DeadlineExceeded) || faults.Classified(err) {
		t.Errorf("got %v", err)
	}
	host := w.create(p) // while the first is under way still
	w.works(p, host)
	w.server.SetAhead(time.Second)
	w.server.Janitor()
	if rows := w.server.Rows(); len(rows) > 2 {
		t.Errorf("rows %+v", rows)
	}
}
