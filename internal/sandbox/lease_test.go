package sandbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

func in(d time.Duration) time.Time { return time.Now().Add(d) }

func (w *world) renewals() int { return len(w.fake.Calls(sandboxtest.Renew)) }

// ends checks what is left of a sandbox's lease, within a minute.
func (w *world) ends(box *sandbox.Sandbox, left time.Duration) {
	w.Helper()
	if got := time.Until(box.Host().ExpiresAt); (got - left).Abs() > time.Minute {
		w.Errorf("the lease ends in %s, not %s", got, left)
	}
}

// cannotRenew is a provider whose leases are what they are.
type cannotRenew struct{ sandbox.Provider }

func TestCover(t *testing.T) {
	t.Parallel()
	unavailable := faults.New(faults.SandboxUnavailable, "renew", nil)
	for name, c := range map[string]struct {
		lease, most time.Duration
		again       bool // the host was there before
		rigid       bool // the provider cannot renew
		answer      error
		until       time.Duration

		renewals int
		left     time.Duration
		err      error
	}{
		"no lease":                        {until: 3 * time.Hour},
		"a fresh one that is long enough": {lease: time.Hour, until: time.Minute, left: time.Hour},
		"too short":                       {lease: time.Hour, until: 3 * time.Hour, renewals: 1, left: 3 * time.Hour},
		"too short, and no longer one":    {lease: time.Hour, most: 2 * time.Hour, until: 3 * time.Hour, renewals: 1, left: 2 * time.Hour, err: faults.SandboxUnsupported},
		"too short, no renewal":           {lease: time.Hour, rigid: true, until: 3 * time.Hour, left: time.Hour, err: faults.SandboxUnsupported},
		"of before":                       {lease: time.Hour, again: true, until: time.Minute, renewals: 1, left: time.Hour},
		"of before, and no longer one":    {lease: time.Hour, most: 2 * time.Hour, again: true, until: 3 * time.Hour, renewals: 1, left: 2 * time.Hour, err: sandbox.ErrShortLease},
		"of before, no renewal":           {lease: time.Hour, again: true, rigid: true, until: 3 * time.Hour, left: time.Hour, err: sandbox.ErrShortLease},
		"unavailable, but long enough":    {lease: time.Hour, again: true, answer: unavailable, until: time.Minute, renewals: 1, left: time.Hour},
		"unavailable":                     {lease: time.Hour, answer: unavailable, until: 3 * time.Hour, renewals: 1, left: time.Hour, err: unavailable},
		"its answer lost":                 {lease: time.Hour, answer: sandboxtest.Lost(unavailable), until: 3 * time.Hour, renewals: 1, left: time.Hour, err: unavailable},
		"gone":                            {lease: time.Hour, answer: faults.SandboxNotFound, until: 3 * time.Hour, renewals: 1, left: time.Hour, err: faults.SandboxNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.Lease, w.fake.MaxLease = c.lease, c.most
			if c.rigid {
				w.client = sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), cannotRenew{w.fake})
			}
			box := w.mustAcquire()
			if c.again {
				box = w.mustAcquire()
			}
			if c.answer != nil {
				w.fake.OnRenew(c.answer)
			}
			err := box.Cover(t.Context(), in(c.until))
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("got %v", err)
			}
			if errors.Is(err, faults.SandboxUnsupported) && faults.Of(err).Outcome != faults.NotStarted {
				t.Errorf("outcome %q", faults.Of(err).Outcome)
			}
			if w.renewals() != c.renewals {
				t.Errorf("%d renewals", w.renewals())
			}
			if c.lease > 0 {
				w.ends(box, c.left)
			}
		})
	}
}

// A renewal whose answer was lost is known to whoever looks next.
func TestALostRenewalIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Lease = time.Hour
	w.fake.OnRenew(sandboxtest.Lost(faults.SandboxUnavailable), faults.SandboxUnavailable)
	if err := w.mustAcquire().Cover(t.Context(), in(3*time.Hour)); !errors.Is(err, faults.SandboxUnavailable) {
		t.Fatal(err)
	}
	box := w.mustAcquire()
	w.ends(box, 3*time.Hour)
	if err := box.Cover(t.Context(), in(2*time.Hour)); err != nil {
		t.Error(err)
	}
}

// followed is a process that is followed until the test lets it end.
type followed struct {
	end  context.CancelFunc
	done chan error
}

func (w *world) follow(box *sandbox.Sandbox, n int) followed {
	l := launch
	l.N = n
	if _, err := box.Start(w.Context(), l, sandbox.Command{}); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	f := followed{cancel, make(chan error, 1)}
	go func() {
		_, err := box.Follow(ctx, l, sandbox.Offsets{}, ignore)
		f.done <- err
	}()
	return f
}

func (f followed) err(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f.done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("still followed")
		return nil
	}
}

// untilRenewed waits for n more renewals, after those that are scripted.
func (w *world) untilRenewed(n int) {
	w.Helper()
	renewed := make(chan struct{}, 1)
	for range n - 1 {
		w.fake.OnRenew(nil)
	}
	w.fake.OnRenew(sandboxtest.Do(func(context.Context) error { renewed <- struct{}{}; return nil }))
	select {
	case <-renewed:
	case <-time.After(30 * time.Second):
		w.Fatalf("%d renewals", w.renewals())
	}
}

// A process lives for longer than any lease: whoever follows it renews, through
// failures, and after him the next.
func TestALeaseIsRenewedWhileFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Lease = 2 * time.Second
	w.fake.Script("build", sandboxtest.Proc{Hang: true})
	w.fake.OnRenew(faults.SandboxUnavailable)
	box := w.mustAcquire()
	first := w.follow(box, 1)
	w.untilRenewed(2)
	first.end()
	if err := first.err(t); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !box.Host().ExpiresAt.After(in(0)) {
		t.Errorf("the lease as the sandbox knows it ended at %s", box.Host().ExpiresAt)
	}
	next := w.mustAcquire()
	second := w.follow(next, 1)
	w.untilRenewed(3)
	_ = next.Stop(t.Context(), launch, 0)
	if err := second.err(t); err != nil {
		t.Error(err)
	}
	after := w.renewals()
	for deadline := in(30 * time.Second); len(w.fake.Live()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a host that nobody follows does not go")
		}
	}
	if w.renewals() != after || len(w.fake.Started()) != 1 {
		t.Errorf("%d renewals after the end, started %v", w.renewals()-after, w.fake.Started())
	}
}

// A renewal that finds the host gone ends a Follow that does not notice.
func TestARenewalFindsTheHostGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Lease = 2 * time.Second
	w.fake.Script("build", sandboxtest.Proc{Hang: true})
	gone := faults.Errorf(faults.SandboxNotFound, "no such host")
	w.fake.OnRenew(gone)
	if err := w.follow(w.mustAcquire(), 1).err(t); err != gone {
		t.Errorf("got %v", err)
	}
}

func TestALeaseThatCannotBeRenewedRunsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Lease = time.Second
	w.fake.Script("build", sandboxtest.Proc{Hang: true})
	for range 1000 {
		w.fake.OnRenew(faults.SandboxUnavailable)
	}
	if err := w.follow(w.mustAcquire(), 1).err(t); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("got %v", err)
	}
	if n := w.renewals(); n < 3 || n > 20 {
		t.Errorf("%d renewals were tried", n)
	}
}

// Of several who follow in one sandbox, one renews, and none waits for another's
// renewal when it is done.
func TestOneRenewalAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Lease = time.Second
	gate := sandboxtest.NewGate()
	w.fake.OnRenew(gate)
	box := w.mustAcquire()
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, member := range []string{"a", "b", "c"} {
		l := sandbox.Launch{RunID: "run1", Step: "checks", Member: member, N: 1}
		w.fake.Script("checks+"+member, sandboxtest.Proc{Hang: true})
		if _, err := box.Start(ctx, l, sandbox.Command{}); err != nil {
			t.Fatal(err)
		}
		all.Go(func() { _, _ = box.Follow(ctx, l, sandbox.Offsets{}, ignore) })
	}
	<-gate.Entered
	time.Sleep(300 * time.Millisecond) // for the others to come, too
	if n := w.renewals(); n != 1 {
		t.Errorf("%d renewals at once", n)
	}
	cancel()
	all.Wait()
}
