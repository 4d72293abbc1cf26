package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// Which kinds become sandbox_provisioning, for every kind in every phase;
// whatever is not listed comes out as the very same error (AC1, AC5).
func TestClassification(t *testing.T) {
	t.Parallel()
	phases := map[sandboxtest.Op][]*faults.Kind{
		sandboxtest.Create:  {faults.SandboxProvisioning, faults.SandboxUnavailable, faults.SandboxTimeout},
		sandboxtest.Get:     {faults.SandboxProvisioning, faults.SandboxUnavailable},
		sandboxtest.Dial:    {faults.SandboxProvisioning, faults.SandboxUnavailable, faults.SandboxTimeout, faults.SandboxLost},
		sandboxtest.Prepare: {faults.SandboxProvisioning, faults.SandboxUnavailable, faults.SandboxTimeout, faults.SandboxLost},
	}
	for op, provisioning := range phases {
		for _, kind := range faults.Kinds() {
			t.Run(fmt.Sprintf("%s/%s", op, kind.Code()), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if op == sandboxtest.Get {
					w.mustAcquire() // so that there is something to attach to
				}
				original := faults.New(kind, "x", syscall.ECONNREFUSED).With(func(f *faults.Fault) {
					f.Outcome, f.RetryAfter = faults.NotStarted, 7
				})
				w.fake.On(op, original)
				_, err := w.acquire(t.Context())
				if slices.Contains(provisioning, kind) {
					w.isProvisioning(err, original)
				} else if err != original {
					t.Errorf("got %v, want the original, unchanged", err)
				}
				if f := faults.Of(err); f.RetryAfter != 7 || f.Outcome != faults.NotStarted {
					t.Errorf("what the fault knew is lost: %+v", f)
				}
				if calls := w.fake.Calls(op); len(calls) != 1 {
					t.Errorf("%d calls, want one: retries have their owner elsewhere", len(calls))
				}
				if op != sandboxtest.Get || kind == faults.SandboxNotFound {
					w.nothingLeft()
				}
			})
		}
	}
}

// Errors of a fresh host's set-up that nobody classified (AC2).
func TestUnclassifiedErrorsDuringSetUp(t *testing.T) {
	t.Parallel()
	reachability := sandboxtest.Unreachable(t)
	for name, errno := range map[string]error{"ECONNREFUSED": syscall.ECONNREFUSED, "ECONNRESET": syscall.ECONNRESET, "EHOSTUNREACH": syscall.EHOSTUNREACH} {
		reachability[name] = errno
	}
	others := map[string]error{
		"plain":         errors.New("a bug"),
		"permission":    &fs.PathError{Op: "open", Path: "/key", Err: syscall.EACCES}, // every errno is a net.Error
		"disk full":     syscall.ENOSPC,
		"bad url":       &url.Error{Op: "Get", URL: "x:", Err: errors.New("unsupported protocol scheme")}, // so is this
		"closed inside": fs.ErrClosed,
	}
	for _, op := range []sandboxtest.Op{sandboxtest.Dial, sandboxtest.Prepare} {
		for name, original := range reachability {
			t.Run(fmt.Sprintf("%s/%s", op, name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.fake.On(op, original)
				_, err := w.acquire(t.Context())
				w.isProvisioning(err, original)
				w.nothingLeft()
			})
		}
		for name, original := range others {
			t.Run(fmt.Sprintf("%s/%s", op, name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.fake.On(op, original)
				if _, err := w.acquire(t.Context()); err != original {
					t.Errorf("got %v, want %v unchanged", err, original)
				}
				w.nothingLeft()
			})
		}
	}
}

// Every step of the roll-back happens whichever of the others fails, and none
// of their errors masks the first (AC2).
func TestRollBack(t *testing.T) {
	t.Parallel()
	cancelled := errors.New("cancelled by the user")
	bug := errors.New("a bug")
	unavailable := faults.New(faults.SandboxUnavailable, "install helper", errors.New("no route"))
	raised := map[string]struct {
		step     func(cancel context.CancelCauseFunc) error
		original error
		same     bool // comes out unchanged
	}{
		"unavailable":  {func(context.CancelCauseFunc) error { return unavailable }, unavailable, false},
		"bug":          {func(context.CancelCauseFunc) error { return bug }, bug, true},
		"cancellation": {func(cancel context.CancelCauseFunc) error { return cancelIn(cancel, cancelled) }, cancelled, true},
		"panic":        {func(context.CancelCauseFunc) error { return sandboxtest.Do(func(context.Context) error { panic("x") }) }, faults.Internal, true},
	}
	broken := []sandboxtest.Op{"", sandboxtest.Close, sandboxtest.Delete, sandboxtest.RemoveKey}
	for name, first := range raised {
		for _, op := range broken {
			t.Run(fmt.Sprintf("%s/%s fails", name, op), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w.fake.OnPrepare(first.step(cancel))
				w.fake.On(op, faults.New(faults.SandboxDenied, "clean up", errors.New("not today")))

				_, err := w.acquire(ctx)
				switch {
				case !first.same:
					w.isProvisioning(err, first.original)
				case !errors.Is(err, first.original) || errors.Is(err, faults.Sandbox):
					t.Errorf("got %v, want %v unchanged", err, first.original)
				}
				want := []sandboxtest.Op{sandboxtest.Create, sandboxtest.Dial, sandboxtest.Prepare, sandboxtest.Close, sandboxtest.Delete, sandboxtest.RemoveKey}
				if got := w.fake.Ops(); !reflect.DeepEqual(got, want) {
					t.Errorf("calls %v, want %v", got, want)
				}
				for _, call := range w.fake.Calls() {
					if !call.Deadline && call.Op != sandboxtest.Close {
						t.Errorf("%s had no deadline", call.Op)
					}
				}
				if op == sandboxtest.Delete || op == sandboxtest.RemoveKey {
					w.client.Release(t.Context(), w.ledger, w.row(sandbox.Releasing, "fake-1"))
				}
				w.nothingLeft()
			})
		}
	}
}

// cancelIn is a step during which our context is cancelled.
func cancelIn(cancel context.CancelCauseFunc, cause error) error {
	return sandboxtest.Do(func(ctx context.Context) error {
		cancel(cause)
		<-ctx.Done()
		return &url.Error{Op: "Post", URL: "http://provider", Err: ctx.Err()} // looks like the network's
	})
}

// Where the deadline of our caller passes its cause is a net.Error, and still
// not a fault.
func TestCallersDeadlineIsNotTheNetworks(t *testing.T) {
	t.Parallel()
	for _, op := range []sandboxtest.Op{sandboxtest.Create, sandboxtest.Dial, sandboxtest.Prepare} {
		w := newWorld(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		w.fake.On(op, cancelIn(cancel, context.DeadlineExceeded))
		_, err := w.acquire(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, faults.Sandbox) {
			t.Errorf("%s: got %v", op, err)
		}
	}
}

// What becomes of the row when Create fails.
func TestRowAfterFailedCreate(t *testing.T) {
	t.Parallel()
	unknown := faults.New(faults.SandboxUnavailable, "create", nil)
	notStarted := faults.New(faults.SandboxCapacity, "create", nil).With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	for name, c := range map[string]struct {
		steps []error
		live  int
	}{
		"certainly not made":                         {[]error{notStarted}, 0},
		"perhaps made":                               {[]error{unknown}, 1},
		"unclassified":                               {[]error{errors.New("a bug")}, 1},
		"an earlier one may have been made":          {[]error{unknown, notStarted}, 1},
		"certainly not made, twice, each with a row": {[]error{notStarted, notStarted}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.OnCreate(c.steps...)
			for range c.steps {
				if _, err := w.acquire(t.Context()); err == nil {
					t.Fatal("no error")
				}
			}
			if live := w.ledger.Live(); len(live) != c.live {
				t.Fatalf("live rows %v, want %d", live, c.live)
			}
			for _, entry := range w.ledger.Live() {
				w.client.Release(t.Context(), w.ledger, entry)
			}
			w.nothingLeft()
		})
	}
}

func TestAmbiguousCreateFindsItsOwnHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.OnCreate(sandboxtest.Lost(faults.New(faults.SandboxUnavailable, "create", nil)))
	_, err := w.acquire(t.Context())
	if code(err) != "sandbox_provisioning" {
		t.Fatal(err)
	}
	w.row(sandbox.Creating, "")
	box := w.mustAcquire()
	if box.Host().ID != "fake-1" || len(w.fake.Live()) != 1 {
		t.Errorf("host %s of %v", box.Host().ID, w.fake.Live())
	}
	w.row(sandbox.Active, "fake-1")
}

// A lost answer of the ledger rolls the host back, too.
func TestLedgerFailsAfterCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	down := errors.New("connection to the database lost")
	w.ledger.On("Created", down)
	if _, err := w.acquire(t.Context()); err != down {
		t.Errorf("got %v", err)
	}
	w.nothingLeft()
}

// The id is recorded though our context was cancelled during Create.
func TestCancelDuringSuccessfulCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cancelled := errors.New("cancelled by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	w.fake.OnCreate(sandboxtest.Do(func(context.Context) error { cancel(cancelled); return nil }))
	_, err := w.acquire(ctx)
	if !errors.Is(err, cancelled) || errors.Is(err, faults.Sandbox) {
		t.Errorf("got %v", err)
	}
	if got, want := w.ledger.Calls(), []string{"Reserve", "Created", "Releasing", "Released"}; !slices.Equal(got, want) {
		t.Errorf("ledger calls %v, want %v", got, want)
	}
	w.nothingLeft()
}

// The cause of our own cancellation may be a fault; it says nothing about the
// provider's host.
func TestCauseThatIsAFault(t *testing.T) {
	t.Parallel()
	for _, op := range []sandboxtest.Op{sandboxtest.Create, sandboxtest.Get} {
		w := newWorld(t)
		if op == sandboxtest.Get {
			w.mustAcquire()
		}
		cause := faults.New(faults.SandboxNotFound, "watch", nil).With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
		ctx, cancel := context.WithCancelCause(t.Context())
		w.fake.On(op, cancelIn(cancel, cause))
		if _, err := w.acquire(ctx); !errors.Is(err, cause) || code(err) != "sandbox_not_found" {
			t.Errorf("%s: got %v", op, err)
		}
		if len(w.ledger.Live()) != 1 {
			t.Errorf("%s: the row was closed on no evidence", op)
		}
	}
}
