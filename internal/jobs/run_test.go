package jobs_test

import (
	"testing"

	"executor/internal/runs"
	"executor/internal/sandbox/sandboxtest"
)

func TestARunSucceeds(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("hello", sandboxtest.Proc{Stdout: "hi\n{\"answer\": 42}\n"})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "hello", "shell": "echo hi"}]}`)
	w.await(id, state{runs.Succeeded, "", "completed"})
	if got := query[int](w, `SELECT (result ->> 'answer')::int FROM executor.run_steps WHERE run_id = $1`, id); got != 42 {
		t.Errorf("result: got %d", got)
	}
	w.eventually(func() bool { return len(w.fake.Live()) == 0 }, func() any { return w.fake.Live() }, "no host")
}

func TestACommandThatFails(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("bad", sandboxtest.Proc{Exit: 3})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "bad", "argv": ["false"]}]}`)
	w.await(id, state{runs.Failed, "command_failed", "discarded"})
}
