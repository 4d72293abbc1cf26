package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

var launch = sandbox.Launch{RunID: "run1", Step: "build", N: 1}

func ignore(sandbox.Stream, int64, []byte) error { return nil }

// operations is every operation that our context can end: on a sandbox that
// is open, unless it is what makes one.
var operations = map[sandboxtest.Op]func(context.Context, *world, *sandbox.Sandbox) error{
	sandboxtest.Create:  acquire,
	sandboxtest.Dial:    acquire,
	sandboxtest.Prepare: acquire,
	sandboxtest.Get: func(ctx context.Context, w *world, box *sandbox.Sandbox) error {
		_, err := w.client.Attach(ctx, w.ledger, box.Entry())
		return err
	},
	sandboxtest.Renew: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		return box.Cover(ctx, time.Now().Add(24*time.Hour))
	},
	sandboxtest.Delete:    deleteHost,
	sandboxtest.RemoveKey: deleteHost,
	sandboxtest.List: func(ctx context.Context, w *world, _ *sandbox.Sandbox) error {
		_, err := w.client.List(ctx)
		return err
	},
	sandboxtest.Exec: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		_, err := box.Exec(ctx, sandbox.Command{}, sandbox.Stdio{})
		return err
	},
	sandboxtest.Upload: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		return box.Upload(ctx, "f", 0o600, strings.NewReader("x"))
	},
	sandboxtest.Download: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		_, err := box.Download(ctx, "f")
		return err
	},
	sandboxtest.Start: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		_, err := box.Start(ctx, launch, sandbox.Command{})
		return err
	},
	sandboxtest.Follow: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		_, err := box.Follow(ctx, launch, sandbox.Offsets{}, ignore)
		return err
	},
	sandboxtest.Stop: func(ctx context.Context, _ *world, box *sandbox.Sandbox) error {
		return box.Stop(ctx, launch, 0)
	},
}

func acquire(ctx context.Context, w *world, _ *sandbox.Sandbox) error {
	_, err := w.client.Acquire(ctx, w.ledger, "fake", sandbox.HostSpec{Key: "another", RunID: "run1"})
	return err
}

func deleteHost(ctx context.Context, w *world, box *sandbox.Sandbox) error {
	return w.client.Delete(ctx, w.ledger, box.Entry())
}

// Our context ends in the middle of each operation: its cause comes out, and
// nothing that reads as a fault of the provider.
func TestCancelInTheMiddle(t *testing.T) {
	t.Parallel()
	for op, run := range operations {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.Lease = time.Hour
			box := w.mustAcquire()
			draining := errors.New("draining")
			ctx, cancel := context.WithCancelCause(t.Context())
			gate := sandboxtest.NewGate()
			w.fake.On(op, gate)
			go func() {
				<-gate.Entered
				cancel(draining)
			}()
			err := run(ctx, w, box)
			if !errors.Is(err, draining) || errors.Is(err, faults.Sandbox) || errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			calls := w.fake.Calls(op)
			if call := calls[len(calls)-1]; call.Deadline == (op == sandboxtest.Follow) {
				t.Errorf("deadline: %v", call.Deadline)
			}
			before := len(w.fake.Calls(op))
			if err := run(ctx, w, box); !errors.Is(err, draining) {
				t.Errorf("with a context that is done: %v", err)
			}
			if len(w.fake.Calls(op)) != before {
				t.Error("the provider was called with a context that is done")
			}
		})
	}
}

// The deadline of one operation passes, and ours does not.
func TestOwnDeadlineIsSandboxTimeout(t *testing.T) {
	t.Parallel()
	const soon = time.Millisecond
	shorten := map[sandboxtest.Op]func(*sandbox.Timeouts){
		sandboxtest.Create:    func(d *sandbox.Timeouts) { d.Create = soon },
		sandboxtest.Dial:      func(d *sandbox.Timeouts) { d.Dial = soon },
		sandboxtest.Prepare:   func(d *sandbox.Timeouts) { d.Prepare = soon },
		sandboxtest.Get:       func(d *sandbox.Timeouts) { d.Get = soon },
		sandboxtest.Renew:     func(d *sandbox.Timeouts) { d.Renew = soon },
		sandboxtest.Delete:    func(d *sandbox.Timeouts) { d.Delete = soon },
		sandboxtest.RemoveKey: func(d *sandbox.Timeouts) { d.RemoveKey = soon },
		sandboxtest.List:      func(d *sandbox.Timeouts) { d.List = soon },
		sandboxtest.Exec:      func(d *sandbox.Timeouts) { d.Exec = soon },
		sandboxtest.Upload:    func(d *sandbox.Timeouts) { d.Upload = soon },
		sandboxtest.Download:  func(d *sandbox.Timeouts) { d.Download = soon },
		sandboxtest.Start:     func(d *sandbox.Timeouts) { d.Start = soon },
		sandboxtest.Stop:      func(d *sandbox.Timeouts) { d.Stop = soon },
	}
	for op, set := range shorten {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.Lease = time.Hour
			box := w.mustAcquire()
			timeouts := sandbox.DefaultTimeouts()
			set(&timeouts)
			w.client = sandbox.NewClient(timeouts, zerolog.Nop(), w.fake)
			short, err := w.client.Attach(t.Context(), w.ledger, box.Entry())
			if op == sandboxtest.Get || op == sandboxtest.Dial {
				short, err = box, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			defer short.Close()
			w.fake.On(op, sandboxtest.Do(func(ctx context.Context) error {
				<-ctx.Done()
				return faults.New(faults.SandboxResponse, "classified too early", ctx.Err())
			}))
			err = operations[op](t.Context(), w, short)
			if !errors.Is(err, faults.SandboxTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want sandbox_timeout over what the provider said", err)
			}
			if fresh := op == sandboxtest.Create || op == sandboxtest.Dial || op == sandboxtest.Prepare; errors.Is(err, faults.SandboxProvisioning) != fresh {
				t.Errorf("provisioning is not %v in %v", fresh, err)
			}
		})
	}
}

// What the seam makes of an error while no context of ours is done.
func TestProvidersErrors(t *testing.T) {
	t.Parallel()
	typed := faults.New(faults.SandboxLost, "read exit", context.Canceled)
	for name, c := range map[string]struct {
		raised error
		code   string
		same   bool
	}{
		"a fault":                    {typed, "sandbox_lost", true},
		"a fault without details":    {faults.SandboxUnavailable, "sandbox_unavailable", true},
		"an unclassified error":      {io.ErrNoProgress, "internal", true},
		"a context that is not ours": {fmt.Errorf("read: %w", context.Canceled), "sandbox_unavailable", false},
		"a limit that is not ours":   {fmt.Errorf("read: %w", context.DeadlineExceeded), "sandbox_timeout", false},
		"a panic":                    {sandboxtest.Do(func(context.Context) error { panic("x") }), "internal", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			box := w.mustAcquire()
			w.fake.On(sandboxtest.Exec, c.raised)
			_, err := box.Exec(t.Context(), sandbox.Command{}, sandbox.Stdio{})
			if code(err) != c.code || (c.same && err != c.raised) {
				t.Errorf("got %v", err)
			}
			if f := faults.Of(err); f.Outcome == faults.NotStarted || f.Outcome == faults.Done {
				t.Errorf("outcome %q of what is not known", f.Outcome)
			}
		})
	}
}

// The caller's own errors are not taken for the provider's, whatever they
// look like.
func TestCallersErrorsComeBackUnchanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.mustAcquire()
	w.fake.Script("build", sandboxtest.Proc{Stdout: "hi\n"})
	if _, err := box.Start(t.Context(), launch, sandbox.Command{}); err != nil {
		t.Fatal(err)
	}
	database := fmt.Errorf("write chunk: %w", context.DeadlineExceeded)
	_, err := box.Follow(t.Context(), launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return database })
	if err != database {
		t.Errorf("sink: got %v", err)
	}
	if err := box.Upload(t.Context(), "f", 0o600, io.MultiReader(strings.NewReader("x"), failing{database})); err != database {
		t.Errorf("reader: got %v", err)
	}
}

type failing struct{ err error }

func (r failing) Read([]byte) (int, error) { return 0, r.err }

func TestDownloadIsReadWithinItsDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.mustAcquire()
	if err := box.Upload(t.Context(), "dir/f", 0o600, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	body, err := box.Download(t.Context(), "dir/f")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := io.Copy(&got, body); err != nil || got.String() != "content" {
		t.Errorf("got %q, %v", got.String(), err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if _, err := box.Download(t.Context(), "none"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, faults.Sandbox) {
		t.Errorf("a missing file: %v", err)
	}
}

// stuck is a provider whose connections give bodies that live as long as
// their context, and never finish to close.
type stuck struct {
	*sandboxtest.Fake
	release chan struct{}
}

type stuckConn struct {
	sandbox.Conn
	release chan struct{}
}

func (p stuck) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	conn, err := p.Fake.Dial(ctx, host)
	return stuckConn{conn, p.release}, err
}

func (c stuckConn) Close() error {
	<-c.release
	return c.Conn.Close()
}

func (c stuckConn) Download(ctx context.Context, _ string) (io.ReadCloser, error) {
	return io.NopCloser(contextReader{ctx}), nil
}

type contextReader struct{ ctx context.Context }

func (r contextReader) Read([]byte) (int, error) {
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

func newStuck(t *testing.T, timeouts sandbox.Timeouts) (*world, *sandbox.Client) {
	w := newWorld(t)
	p := stuck{w.fake, make(chan struct{})}
	t.Cleanup(func() { close(p.release) })
	return w, sandbox.NewClient(timeouts, zerolog.Nop(), p)
}

func TestReadingADownloadIsJudgedToo(t *testing.T) {
	t.Parallel()
	timeouts := sandbox.DefaultTimeouts()
	timeouts.Download, timeouts.Close = time.Millisecond, time.Millisecond
	w, client := newStuck(t, timeouts)
	box, err := client.Acquire(t.Context(), w.ledger, "fake", spec)
	if err != nil {
		t.Fatal(err)
	}
	body, err := box.Download(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadAll(body); code(err) != "sandbox_timeout" {
		t.Errorf("got %v", err)
	}
}

// A connection that does not close cannot keep its host alive.
func TestCloseThatHangs(t *testing.T) {
	t.Parallel()
	timeouts := sandbox.DefaultTimeouts()
	timeouts.Close = time.Millisecond
	w, client := newStuck(t, timeouts)
	down := faults.New(faults.SandboxUnavailable, "prepare", nil)
	w.fake.OnPrepare(down)
	_, err := client.Acquire(t.Context(), w.ledger, "fake", spec)
	w.isProvisioning(err, down)
	w.nothingLeft()
}

func TestCloseHappensOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.mustAcquire()
	for range 2 {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := w.fake.Calls(sandboxtest.Close); len(got) != 1 {
		t.Errorf("closed %d times", len(got))
	}
	if !slices.Contains(w.fake.Live(), box.Host()) {
		t.Error("closing ended the host")
	}
}
