package jobs_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/sandbox/sandboxtest"
)

func (w *world) cancel(id uuid.UUID) runs.Status {
	w.t.Helper()
	status, err := w.store.Cancel(context.Background(), w.store.Pool(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return status
}

// waysToCancel are what a user can do: the CLI, the API and SQL call one
// function, River UI another.
var waysToCancel = map[string]func(*world, uuid.UUID){
	"ours": func(w *world, id uuid.UUID) { w.cancel(id) },
	"river": func(w *world, id uuid.UUID) {
		if _, err := w.river.JobCancel(context.Background(), w.job(id)); err != nil {
			w.t.Fatal(err)
		}
	},
}

func TestCancel(t *testing.T) {
	for name, cancel := range waysToCancel {
		t.Run(name+", queued", func(t *testing.T) {
			w := newWorld(t)
			id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
			cancel(w, id)
			w.start(w.executor())
			w.await(id, state{runs.Cancelled, "", "cancelled"})
			if n := len(w.fake.Started()); n != 0 {
				t.Errorf("%d processes", n)
			}
		})
		t.Run(name+", running", func(t *testing.T) {
			w := newWorld(t)
			w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Hang: true})
			w.start(w.executor())
			id := w.enqueue(`{"steps": [{"name": "a", "shell": "x"}, {"name": "b", "shell": "y"}]}`)
			w.eventually(func() bool { return len(w.fake.Started()) == 1 }, func() any { return w.state(id) }, "a process")
			asked := time.Now()
			cancel(w, id)
			w.await(id, state{runs.Cancelled, "", "cancelled"})
			if took := time.Since(asked); took > 2*time.Second {
				t.Errorf("took %v", took)
			}
			if got := query[string](w, `SELECT string_agg(convert_from(data, 'UTF8'), '') FROM executor.run_output WHERE run_id = $1`, id); got != "hello\n" {
				t.Errorf("its output is lost: %q", got)
			}
			if n := query[int](w, `SELECT count(*) FROM executor.run_attempts WHERE run_id = $1 AND outcome = 'cancelled'`, id); n != 1 {
				t.Errorf("%d cancelled attempts", n)
			}
			w.clean()
		})
		t.Run(name+", backing off", func(t *testing.T) {
			w := newWorld(t)
			w.fake.OnCreate(unavailable())
			w.start(w.executor())
			id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
			w.await(id, state{runs.BackingOff, "", "scheduled"})
			cancel(w, id)
			w.await(id, state{runs.Cancelled, "", "cancelled"})
			w.clean()
		})
		t.Run(name+", backing off with a process that may live", func(t *testing.T) {
			w := newWorld(t)
			w.fake.OnFollow(faults.New(faults.SandboxUnavailable, "follow", nil))
			w.fake.Script("a", sandboxtest.Proc{Hang: true})
			w.start(w.executor())
			id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
			w.await(id, state{runs.BackingOff, "", "scheduled"})
			cancel(w, id)
			w.await(id, state{runs.Cancelled, "", "cancelled"})
			if len(w.fake.Calls(sandboxtest.Stop)) == 0 {
				t.Error("the process was not stopped")
			}
			w.clean()
		})
	}
}

// A process that cannot be stopped loses its host; only then is the run
// cancelled.
func TestCancelOfAProcessThatCannotBeStopped(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("a", sandboxtest.Proc{Hang: true})
	stuck := faults.New(faults.SandboxUnavailable, "stop", nil)
	w.fake.On(sandboxtest.Stop, stuck, stuck, stuck)
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "x"}]}`)
	w.eventually(func() bool { return len(w.fake.Started()) == 1 }, func() any { return w.state(id) }, "a process")
	w.cancel(id)
	w.await(id, state{runs.Cancelled, "", "cancelled"})
	w.clean()
}

// A finished run stays what it is.
func TestCancelComesTooLate(t *testing.T) {
	w := newWorld(t)
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "x"}]}`)
	w.await(id, state{runs.Succeeded, "", "completed"})
	if got := w.cancel(id); got != runs.Succeeded {
		t.Errorf("the run is %s now", got)
	}
	if _, err := w.store.Cancel(context.Background(), w.store.Pool(), uuid.New()); err != runs.ErrNotFound {
		t.Errorf("an unknown run: %v", err)
	}
}

// A cancel is heard though every notification is lost.
func TestCancelWithoutNotifications(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("a", sandboxtest.Proc{Hang: true})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "x"}]}`)
	w.eventually(func() bool { return len(w.fake.Started()) == 1 }, func() any { return w.state(id) }, "a process")
	asked := time.Now()
	if _, err := w.store.Pool().Exec(context.Background(), `UPDATE executor.runs SET cancel_requested_at = now() WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	w.await(id, state{runs.Cancelled, "", "cancelled"})
	if took := time.Since(asked); took > 2500*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// A run's own limits.
func TestTimeouts(t *testing.T) {
	for name, spec := range map[string]string{
		"step": `{"steps": [{"name": "a", "shell": "x", "timeout": "200ms"}]}`,
		"run":  `{"timeout": "300ms", "steps": [{"name": "a", "shell": "x"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fake.Script("a", sandboxtest.Proc{Hang: true})
			w.start(w.executor())
			id := w.enqueue(spec)
			w.await(id, state{runs.Failed, "timeout", "discarded"})
			if n := len(w.fake.Calls(sandboxtest.Stop)); n != 1 {
				t.Errorf("stopped %d times", n)
			}
			w.clean()
		})
	}
}

// unheard are cancels of which only the tables know.
var unheard = map[string]string{
	"ours":  `UPDATE executor.runs SET cancel_requested_at = now()`,
	"river": `UPDATE executor.river_job SET metadata = metadata || '{"cancel_attempted_at": "2026-01-01T00:00:00Z"}'`,
}

// deaf runs a run on an executor that hears of no cancel, up to its first
// process.
func (w *world) deaf(spec string) (id uuid.UUID, stop func()) {
	w.t.Helper()
	e := w.executor()
	e.Config.Watch = time.Hour
	stop = w.start(e)
	id = w.enqueue(spec)
	w.running(id)
	return id, stop
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.store.Pool().Exec(context.Background(), sql); err != nil {
		w.t.Fatal(err)
	}
}

// A deploy does not hand a run on whose end was asked for, though nobody has
// heard of it yet.
func TestCancelBeforeADeploy(t *testing.T) {
	for name, ask := range unheard {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fake.Script("a", sandboxtest.Proc{Hang: true})
			id, stop := w.deaf(oneStep)
			w.exec(ask)
			stop()
			if got := w.state(id); got != (state{runs.Cancelled, "", "cancelled"}) {
				t.Errorf("after the drain: %+v", got)
			}
			if len(w.fake.Calls(sandboxtest.Stop)) == 0 {
				t.Error("the process was not stopped")
			}
			w.clean()
		})
	}
}

// Nor does a step begin.
func TestCancelBeforeAStep(t *testing.T) {
	for name, ask := range unheard {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			end := make(chan struct{})
			w.fake.Script("a", sandboxtest.Proc{Until: end})
			id, _ := w.deaf(`{"steps": [{"name": "a", "shell": "x"}, {"name": "b", "shell": "y"}]}`)
			w.exec(ask)
			close(end)
			w.await(id, state{runs.Cancelled, "", "cancelled"})
			if a := w.attempts(id); len(a) != 1 {
				t.Errorf("attempts: %+v", a)
			}
			w.clean()
		})
	}
}
