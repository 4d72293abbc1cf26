package runs_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// leased is a run on hosts with leases, and who works on it.
type leased struct {
	*testing.T
	store  *runs.Store
	fake   *sandboxtest.Fake
	runner *runs.Runner
	id     uuid.UUID
	claim  *runs.Claim
}

func newLeased(t *testing.T, spec string) *leased {
	t.Parallel()
	l := &leased{T: t, store: runstest.New(t), fake: sandboxtest.NewFake()}
	log := runstest.Log(t)
	client := sandbox.NewClient(sandbox.DefaultTimeouts(), log, l.fake)
	l.runner = &runs.Runner{
		Store: l.store, Sandboxes: client, Provider: "fake", Machine: "m", OutputCap: 1 << 20, Log: log,
		Now: time.Now, Jitter: func() float64 { return 0.5 },
	}
	executor := uuid.New()
	var job int64
	l.id, job = deliveredSpec(t, l.store, executor, spec)
	l.claimAs(executor, job)
	return l
}

func (l *leased) claimAs(executor uuid.UUID, job int64) {
	l.Helper()
	var err error
	if l.claim, _, err = l.store.Claim(context.Background(), l.id, job, executor); err != nil || l.claim == nil {
		l.Fatal(l.claim, err)
	}
}

// again claims the run once more, as another executor.
func (l *leased) again() {
	l.Helper()
	executor := uuid.New()
	if err := l.store.Register(context.Background(), runs.ExecutorInfo{ID: executor, Machine: "m"}); err != nil {
		l.Fatal(err)
	}
	var job int64
	if err := l.store.Pool().QueryRow(context.Background(), `UPDATE executor.river_job SET state = 'running', finalized_at = NULL RETURNING id`).Scan(&job); err != nil {
		l.Fatal(err)
	}
	l.claimAs(executor, job)
}

func (l *leased) kept() sandbox.Key { return sandbox.KeptKey(l.id.String()) }

// during lets f happen at the beginning of the next call of op.
func (l *leased) during(op sandboxtest.Op, f func()) {
	l.fake.On(op, sandboxtest.Do(func(context.Context) error { f(); return nil }))
}

// leases gives the first host one lease, and those that are made later another.
func (l *leased) leases(first, later time.Duration) {
	l.fake.Lease, l.fake.MaxLease = first, first
	l.during(sandboxtest.Follow, func() { l.fake.Lease, l.fake.MaxLease = later, later })
}

// calls checks what was asked of the provider, connections aside.
func (l *leased) calls(want ...sandboxtest.Op) {
	l.Helper()
	var got []sandboxtest.Op
	for _, call := range l.fake.Calls(sandboxtest.Create, sandboxtest.Renew, sandboxtest.Start, sandboxtest.Delete) {
		got = append(got, call.Op)
	}
	if !slices.Equal(got, want) {
		l.Errorf("calls %v, want %v", got, want)
	}
	if misuse := l.fake.Misuse(); len(misuse) > 0 {
		l.Errorf("misuse: %v", misuse)
	}
}

func (l *leased) live(want ...string) {
	l.Helper()
	var got []string
	for _, host := range l.fake.Live() {
		got = append(got, host.ID)
	}
	if !slices.Equal(got, want) {
		l.Errorf("hosts %v, want %v", got, want)
	}
}

const (
	create = sandboxtest.Create
	renew  = sandboxtest.Renew
	start  = sandboxtest.Start
	remove = sandboxtest.Delete
)

// A lease that is shorter than the step's time limit is renewed before it.
func TestALeaseCoversAStep(t *testing.T) {
	l := newLeased(t, `{"steps": [{"name": "a", "shell": "x", "timeout": "3h"}]}`)
	l.fake.Lease = time.Hour
	l.during(start, func() {
		if left := time.Until(l.fake.Live()[0].ExpiresAt); left < 3*time.Hour+10*time.Second {
			t.Errorf("the lease is %s", left)
		}
	})
	if err := l.runner.Run(context.Background(), l.claim); err != nil {
		t.Fatal(err)
	}
	l.calls(create, renew, start, remove)
}

// The run ends the step before its own limit would.
func TestALeaseNeedNotOutliveTheRun(t *testing.T) {
	l := newLeased(t, `{"timeout": "30m", "steps": [{"name": "a", "shell": "x", "timeout": "3h"}]}`)
	l.fake.Lease, l.fake.MaxLease = time.Hour, time.Hour
	if err := l.runner.Run(context.Background(), l.claim); err != nil {
		t.Fatal(err)
	}
	l.calls(create, start, remove)
}

func TestAFreshHostIsTooShortLived(t *testing.T) {
	for _, mode := range []string{runs.Ephemeral, runs.Kept} {
		t.Run(mode, func(t *testing.T) {
			l := newLeased(t, `{"sandbox": "`+mode+`", "steps": [{"name": "a", "shell": "x", "timeout": "3h"}]}`)
			l.fake.Lease, l.fake.MaxLease = time.Hour, 2*time.Hour
			if err := l.runner.Run(context.Background(), l.claim); !errors.Is(err, faults.SandboxUnsupported) {
				t.Errorf("got %v", err)
			}
			l.calls(create, renew)
		})
	}
}

// A kept host that is too short-lived for the next step makes way for another,
// once, before that step has done anything.
func TestAKeptHostIsRotated(t *testing.T) {
	for name, next := range map[string]string{
		"for a step":           `{"name": "b", "shell": "x", "timeout": "1h", "files": [{"path": "f", "content": "x"}]}`,
		"for a composite step": `{"name": "b", "parallel": [{"name": "m", "shell": "x", "timeout": "1h"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeased(t, `{"sandbox": "kept", "steps": [{"name": "a", "shell": "x"}, `+next+`, {"name": "c", "shell": "x"}]}`)
			l.leases(30*time.Minute, 2*time.Hour)
			if err := l.runner.Run(context.Background(), l.claim); err != nil {
				t.Fatal(err)
			}
			l.calls(create, start, renew, remove, create, start, start)
			l.live("fake-2")
			for _, call := range l.fake.Calls(sandboxtest.Upload) {
				if call.HostID != "fake-2" {
					t.Errorf("a file went to %s", call.HostID)
				}
			}
		})
	}
}

// The former host cannot be deleted: no second one is made beside it.
func TestARotationThatFails(t *testing.T) {
	l := newLeased(t, `{"sandbox": "kept", "steps": [{"name": "a", "shell": "x"}, {"name": "b", "shell": "x", "timeout": "1h"}]}`)
	l.leases(30*time.Minute, 2*time.Hour)
	down := faults.New(faults.SandboxUnavailable, "delete", nil)
	l.fake.OnDelete(down, down)
	if err := l.runner.Run(context.Background(), l.claim); !errors.Is(err, faults.SandboxProvisioning) {
		t.Errorf("got %v", err)
	}
	l.calls(create, start, renew, remove, remove)
	l.live("fake-1")
}

// A renewal fails before a step: its attempt does, and nothing was started.
func TestARenewalThatFailsBeforeAStep(t *testing.T) {
	l := newLeased(t, `{"steps": [{"name": "a", "shell": "x", "timeout": "3h"}]}`)
	l.fake.Lease = time.Hour
	l.fake.OnRenew(sandboxtest.Lost(faults.SandboxUnavailable))
	if err := l.runner.Run(context.Background(), l.claim); !errors.Is(err, faults.SandboxUnavailable) {
		t.Errorf("got %v", err)
	}
	l.calls(create, renew)
}

func TestCancelledDuringARenewal(t *testing.T) {
	l := newLeased(t, `{"sandbox": "kept", "steps": [{"name": "a", "shell": "x", "timeout": "3h"}]}`)
	l.fake.Lease = time.Hour
	gate := sandboxtest.NewGate()
	l.fake.OnRenew(gate)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		<-gate.Entered
		cancel(runs.ErrCancelled)
	}()
	if err := l.runner.Run(ctx, l.claim); !errors.Is(err, runs.ErrCancelled) {
		t.Errorf("got %v", err)
	}
	l.calls(create, renew)
}

// A host in which a process lives is not rotated, however short its lease: the
// next executor asks for a longer one and follows. What comes after the process
// gets a fresh one.
func TestALiveProcessKeepsItsHost(t *testing.T) {
	for name, step := range map[string]string{
		"a step":           `{"name": "a", "shell": "x", "timeout": "1h"}`,
		"a composite step": `{"name": "a", "parallel": [{"name": "m", "shell": "x", "timeout": "1h"}]}`,
	} {
		for _, renewable := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", renewable", false: ", not renewable"}[renewable], func(t *testing.T) {
				l := newLeased(t, `{"sandbox": "kept", "steps": [`+step+`, {"name": "b", "shell": "x"}]}`)
				l.fake.Lease = 2 * time.Hour
				end := make(chan struct{})
				for _, process := range []string{"a", "a+m"} {
					l.fake.Script(process, sandboxtest.Proc{Until: end})
				}
				ctx, cancel := context.WithCancelCause(context.Background())
				l.during(sandboxtest.Follow, func() { cancel(runs.ErrDraining) })
				if err := l.runner.Run(ctx, l.claim); !errors.Is(err, runs.ErrDraining) {
					t.Fatal(err)
				}
				if err := l.store.HandBack(context.Background(), l.claim, "test"); err != nil {
					t.Fatal(err)
				}
				l.again()
				if !renewable {
					l.fake.EndLease(l.kept(), time.Minute)
				}
				l.during(sandboxtest.Follow, func() { close(end) })
				if err := l.runner.Run(context.Background(), l.claim); err != nil {
					t.Fatal(err)
				}
				starts := l.fake.Calls(start)
				if len(l.fake.Started()) != 2 || starts[1].HostID != "fake-1" || len(l.fake.Calls(renew)) == 0 {
					t.Errorf("calls: %v", l.fake.Calls())
				}
				l.live(map[bool]string{true: "fake-1", false: "fake-2"}[renewable])
			})
		}
	}
}

// A kept host goes under the members of a composite step. None tries again on
// what is left of it: the run waits, and all go on in a fresh one.
func TestAKeptHostGoesUnderAComposite(t *testing.T) {
	l := newLeased(t, `{"sandbox": "kept", "steps": [{"name": "a", "parallel": [{"name": "m", "shell": "x"}, {"name": "n", "shell": "x"}]}]}`)
	l.fake.Script("a+m", sandboxtest.Proc{Hang: true}, sandboxtest.Proc{})
	l.fake.Script("a+n", sandboxtest.Proc{Hang: true}, sandboxtest.Proc{})
	l.during(sandboxtest.Follow, func() {})
	l.during(sandboxtest.Follow, func() { l.fake.Vanish(l.kept()) })
	var failed *runs.StepError
	if err := l.runner.Run(context.Background(), l.claim); !errors.As(err, &failed) || !errors.Is(err, faults.SandboxNotFound) {
		t.Fatalf("got %v", err)
	}
	l.runner.Release(context.Background(), l.claim, false)
	if err := l.store.BackOff(context.Background(), l.claim, failed, time.Now()); err != nil {
		t.Fatal(err)
	}
	l.again()
	if err := l.runner.Run(context.Background(), l.claim); err != nil {
		t.Fatal(err)
	}
	l.live("fake-2")
	if started := l.fake.Started(); len(started) != 4 || len(l.fake.Misuse()) > 0 {
		t.Errorf("started %v, misuse %v", started, l.fake.Misuse())
	}
}

// Nor does a member try again on a kept host that is full.
func TestAKeptHostIsFullUnderAComposite(t *testing.T) {
	l := newLeased(t, `{"sandbox": "kept", "steps": [{"name": "a", "parallel": [{"name": "m", "shell": "x"}, {"name": "n", "shell": "x"}]}]}`)
	l.fake.Script("a+m", sandboxtest.Proc{})
	l.fake.Script("a+n", sandboxtest.Proc{})
	l.fake.OnFollow(faults.New(faults.SandboxDiskFull, "follow process", nil).With(func(f *faults.Fault) { f.Outcome = faults.Done }))
	var failed *runs.StepError
	if err := l.runner.Run(context.Background(), l.claim); !errors.As(err, &failed) || !errors.Is(err, faults.SandboxDiskFull) {
		t.Fatalf("got %v", err)
	}
	if n := len(l.fake.Started()); n != 2 {
		t.Errorf("%d starts", n)
	}
}
