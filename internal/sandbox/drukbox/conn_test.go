package drukbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
	"executor/internal/sandbox/sandboxtest"
)

var launch = sandbox.Launch{RunID: "run", Step: "step", N: 1}

func shell(script string) sandbox.Command {
	return sandbox.Command{Argv: []string{"sh", "-c", script}}
}

// output is what a Follow brought, and when it did.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	at   int64
	more chan struct{}
}

func (o *output) sink(stream sandbox.Stream, offset int64, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stream == sandbox.Stdout {
		if offset != o.at {
			return fmt.Errorf("offset %d after %d bytes", offset, o.at)
		}
		o.at += int64(len(data))
		o.buf.Write(data)
	}
	select {
	case o.more <- struct{}{}:
	default:
	}
	return nil
}

func (o *output) until(t *testing.T, text string) {
	t.Helper()
	for deadline := time.After(patience); ; {
		o.mu.Lock()
		found := strings.Contains(o.buf.String(), text)
		o.mu.Unlock()
		if found {
			return
		}
		select {
		case <-o.more:
		case <-deadline:
			t.Fatalf("no %q", text)
		}
	}
}

// step is a process that was started in a host, and is followed.
type step struct {
	*world
	host sandbox.Host
	conn sandbox.Conn
	output
	exit chan sandbox.Exit
	err  chan error
}

func (w *world) start(p *drukbox.Provider, script string) *step {
	w.Helper()
	s := &step{world: w, host: w.create(p), exit: make(chan sandbox.Exit, 1), err: make(chan error, 1)}
	s.more = make(chan struct{}, 1)
	s.conn = w.works(p, s.host)
	if _, err := s.conn.Start(soon(w), launch, shell(script)); err != nil {
		w.Fatal("start:", err)
	}
	ctx := soon(w)
	go func() {
		exit, err := s.conn.Follow(ctx, launch, sandbox.Offsets{}, s.sink)
		s.exit <- exit
		s.err <- err
	}()
	w.Cleanup(func() {
		select {
		case <-s.err:
		case <-ctx.Done():
		}
	})
	return s
}

// end is how Follow ended.
func (s *step) end() (sandbox.Exit, error) {
	s.Helper()
	select {
	case exit := <-s.exit:
		err := <-s.err
		s.err <- nil
		return exit, err
	case <-time.After(patience):
		s.Fatal("follow does not end")
		return sandbox.Exit{}, nil
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// Connections are cut again and again, late and in pieces: no byte is missing
// and none comes twice.
func TestFollowAcrossCuts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Proxied: true})
	s := w.start(w.open(t, nil), "while [ ! -e go ]; do sleep 0.05; done; seq 1 200000; exit 3")
	w.server.Slow(t, s.host.ID)
	w.server.Limit(t, s.host.ID, 150_000) // of some 1.3 MB
	w.server.Cut(t, s.host.ID)
	w.server.Mend(t, s.host.ID)
	eventually(t, "an upload", func() bool {
		return s.conn.Upload(soon(t), "go", 0o600, strings.NewReader("go\n")) == nil
	})
	exit, err := s.end()
	if err != nil || exit.Code != 3 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if got := s.buf.String(); got != numbers(200000) {
		t.Errorf("%d bytes, or others", len(got))
	}
}

func TestCutInMidFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Proxied: true})
	p := w.open(t, nil)
	s := w.start(p, "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3")
	s.until(t, "one\n")
	w.server.Cut(t, s.host.ID)
	if _, err := p.Get(soon(t), s.host.ID); err != nil {
		t.Error("get:", err) // the control plane is another path
	}
	if _, err := s.conn.Exec(soon(t), shell("true"), sandbox.Stdio{}); faults.Of(err).Kind != faults.SandboxUnavailable {
		t.Errorf("exec meanwhile: %v", err)
	}
	w.server.Mend(t, s.host.ID)
	if exit, err := s.conn.Exec(soon(t), shell("touch go"), sandbox.Stdio{}); err != nil || !exit.Success() {
		t.Errorf("exec: %+v, %v", exit, err)
	}
	if exit, err := s.end(); err != nil || exit.Code != 3 || s.buf.String() != "one\ntwo\n" {
		t.Errorf("%+v, %v, %q", exit, err, s.buf.String())
	}
}

// A host is followed on though its control plane is away.
func TestCutWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Proxied: true})
	s := w.start(w.open(t, nil), "echo one; while [ ! -e go ]; do sleep 0.05; done; exit 3")
	s.until(t, "one\n")
	w.server.Intercept(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		rw.WriteHeader(503)
		return true
	})
	w.server.Cut(t, s.host.ID)
	w.server.Mend(t, s.host.ID)
	eventually(t, "a command", func() bool {
		_, err := s.conn.Exec(soon(t), shell("touch go"), sandbox.Stdio{})
		return err == nil
	})
	if exit, err := s.end(); err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// A process that says nothing for longer than the budget of reconnecting, and
// then a cut: the budget counts from the cut.
func TestCutInAQuietFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Proxied: true})
	s := w.start(w.open(t, func(c *drukbox.Config) { c.Timeouts.Reconnect = time.Second }), "while [ ! -e go ]; do sleep 0.05; done; exit 3")
	for range 2 {
		time.Sleep(1500 * time.Millisecond)
		w.server.Cut(t, s.host.ID)
		w.server.Mend(t, s.host.ID)
		eventually(t, "a connection", func() bool {
			_, err := s.conn.Exec(soon(t), shell("true"), sandbox.Stdio{})
			return err == nil
		})
	}
	if exit, err := s.conn.Exec(soon(t), shell("touch go"), sandbox.Stdio{}); err != nil || !exit.Success() {
		t.Errorf("exec: %+v, %v", exit, err)
	}
	if exit, err := s.end(); err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// The budget of reconnecting counts from the cut.
func TestAHostThatStaysAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Proxied: true})
	s := w.start(w.open(t, func(c *drukbox.Config) { c.Timeouts.Reconnect = time.Second }), "echo one; sleep 300; sleep 1")
	s.until(t, "one\n")
	w.server.Cut(t, s.host.ID)
	began := time.Now()
	_, err := s.end()
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxUnavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took < 500*time.Millisecond || took > patience/2 {
		t.Errorf("it took %s", took)
	}
}

func TestAHostDeletedUnderAStep(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*world, string){
		"by the janitor": func(w *world, id string) { w.server.SetExpires(id, -time.Second); w.server.Janitor() },
		"by a tenant":    func(w *world, id string) { _ = w.open(w, nil).Delete(soon(w), id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{})
			s := w.start(w.open(t, nil), "echo one; sleep 300; sleep 1")
			s.until(t, "one\n")
			remove(w, s.host.ID)
			if _, err := s.end(); faults.Of(err).Kind != faults.SandboxNotFound {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Frozen: the connection stands, and nothing comes.
func TestAFrozenHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, func(c *drukbox.Config) {
		c.Timeouts = drukbox.Timeouts{KeepAlive: 500 * time.Millisecond, Handshake: 3 * time.Second, Reconnect: 30 * time.Second, FirstWait: 50 * time.Millisecond}
	})
	s := w.start(p, "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3")
	s.until(t, "one\n")
	thaw := w.server.Freeze(t, s.host.ID)
	began := time.Now()
	_, err := s.conn.Exec(soon(t), shell("true"), sandbox.Stdio{})
	if faults.Of(err).Kind != faults.SandboxUnavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %s", took)
	}
	thaw()
	eventually(t, "a command", func() bool {
		_, err := s.conn.Exec(soon(t), shell("touch go"), sandbox.Stdio{})
		return err == nil
	})
	if exit, err := s.end(); err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// A connection that was over before anybody noticed costs time, and no command.
func TestAStaleConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, func(c *drukbox.Config) { c.Timeouts.KeepAlive = 500 * time.Millisecond })
	host := w.create(p)
	conn := w.works(p, host)
	thaw := w.server.Freeze(t, host.ID)
	time.AfterFunc(3*time.Second, thaw)
	if exit, err := conn.Exec(soon(t), shell("true"), sandbox.Stdio{}); err != nil || !exit.Success() {
		t.Errorf("exec: %+v, %v", exit, err)
	}
}

// Cancelled while a frozen host holds the connection.
func TestCancelledOnAFrozenHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	conn := w.works(p, host)
	thaw := w.server.Freeze(t, host.ID)
	defer thaw()
	ours := errors.New("ours")
	for name, op := range map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := conn.Exec(ctx, shell("true"), sandbox.Stdio{})
			return err
		},
		"dial": func(ctx context.Context) error { _, err := p.Dial(ctx, host); return err },
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, ours)
		began := time.Now()
		if err := op(ctx); !errors.Is(err, ours) || faults.Classified(err) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %s", name, took)
		}
		cancel()
	}
	began := time.Now()
	_ = conn.Close()
	if took := time.Since(began); took > time.Second {
		t.Errorf("close took %s", took)
	}
}

func TestHostsThatCannotBeDialled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*world, string)
		kind  *faults.Kind
	}{
		"another host key":        {func(w *world, id string) { w.server.Reinstall(w, id) }, faults.SandboxDenied},
		"the key is refused":      {func(w *world, id string) { w.server.LockOut(w, id) }, faults.SandboxDenied},
		"refused, and gone":       {func(w *world, id string) { w.server.LockOut(w, id); w.server.SetExpires(id, -time.Second) }, faults.SandboxNotFound},
		"down":                    {func(w *world, id string) { w.server.Kill(w, id) }, faults.SandboxUnavailable},
		"down, and in error":      {func(w *world, id string) { w.server.Kill(w, id); w.server.SetStatus(id, drukboxtest.Failed) }, faults.SandboxNotFound},
		"not active any more":     {func(w *world, id string) { w.server.SetStatus(id, drukboxtest.Bootstrapping) }, faults.SandboxUnavailable},
		"nobody knows its key":    {func(w *world, id string) { _ = w.open(w, nil).RemoveKey(soon(w), sandbox.Host{ID: id}) }, faults.SandboxDenied},
		"silent":                  {func(w *world, id string) { w.server.Freeze(w, id) }, faults.SandboxUnavailable},
		"no session at a gateway": {func(w *world, id string) { w.server.Break(w, id) }, faults.SandboxUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{Gateway: true})
			p := w.open(t, func(c *drukbox.Config) { c.Timeouts.Handshake = 5 * time.Second })
			host := w.create(p)
			c.spoil(w, host.ID)
			conn, err := p.Dial(soon(t), host)
			if err == nil {
				defer conn.Close()
				_, err = conn.Exec(soon(t), shell("true"), sandbox.Stdio{})
			}
			if f := faults.Of(err); f == nil || f.Kind != c.kind {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Whoever waits for a frozen host to be prepared keeps nobody who has less time.
func TestNobodyWaitsForAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	line := sandboxtest.NewProxy(t, "tcp", w.server.Address(t, host.ID))
	_, port, _ := net.SplitHostPort(line.Address)
	moved, _ := strconv.Atoi(port)
	w.server.Move(t, host.ID, moved)
	conn, err := p.Dial(soon(t), host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	thaw := line.Freeze()
	defer thaw()
	patient, leave := context.WithTimeout(t.Context(), patience)
	gone, began := make(chan bool), make(chan bool)
	go func() {
		close(began)
		_, _ = conn.Exec(patient, shell("true"), sandbox.Stdio{})
		close(gone)
	}()
	<-began
	time.Sleep(50 * time.Millisecond) // to be the first
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, enough)
	defer cancel()
	at := time.Now()
	if err := conn.Upload(ctx, "file", 0o600, strings.NewReader("x")); !errors.Is(err, enough) || time.Since(at) > patience/2 {
		t.Errorf("%v after %s", err, time.Since(at))
	}
	leave()
	<-gone
}

// The host goes between our look and our dial.
func TestGoneWhileDialling(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*world, string){
		"refused": func(w *world, id string) { w.server.LockOut(w, id) },
		"down":    func(w *world, id string) { w.server.Kill(w, id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{})
			p := w.open(t, nil)
			host := w.create(p)
			spoil(w, host.ID)
			w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) bool {
				next.ServeHTTP(rw, r)
				w.server.SetExpires(host.ID, -time.Second)
				return true
			})
			if _, err := p.Dial(soon(t), host); faults.Of(err).Kind != faults.SandboxNotFound {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A TCP server that says nothing, where a host should be.
func TestASilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, func(c *drukbox.Config) { c.Timeouts.Handshake = 300 * time.Millisecond })
	host := w.create(p)
	w.server.Move(t, host.ID, l.Addr().(*net.TCPAddr).Port)
	began := time.Now()
	if _, err := p.Dial(soon(t), host); faults.Of(err).Kind != faults.SandboxUnavailable || time.Since(began) > patience/2 {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

// The control plane may show one type of host key while the host has two.
func TestKnownHostKeysDecide(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ed25519", "ecdsa"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, drukboxtest.Options{KeyTypes: []string{kind}})
			p := w.open(t, nil)
			w.works(p, w.create(p))
		})
	}
}

// A host with an address of its own network that we cannot reach.
func TestTheOtherAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{Internal: "127.0.0.77"})
	p := w.open(t, nil)
	w.works(p, w.create(p))
}

// Hosts without a key of their own are reached with ours, from any machine.
func TestIdentity(t *testing.T) {
	t.Parallel()
	private, public := drukboxtest.NewIdentity(t)
	w := newWorld(t, drukboxtest.Options{NoKeys: true, Identity: public})
	if _, err := w.open(t, nil).Create(soon(t), spec); faults.Of(err).Kind != faults.SandboxProvisioning {
		t.Errorf("without the identity: %v", err)
	}
	p := w.open(t, func(c *drukbox.Config) { c.Identity = []byte(private) })
	host := w.create(p)
	if host.Machine != "" {
		t.Errorf("tied to %q", host.Machine)
	}
	w.works(p, host)
	elsewhere := w.open(t, func(c *drukbox.Config) { c.Identity, c.KeyDir = []byte(private), t.TempDir() })
	w.works(elsewhere, host)
}
