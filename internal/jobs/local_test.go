package jobs_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

// onMachine is an executor whose hosts are real.
func (w *world) onMachine(mode local.Mode) *jobs.Executor {
	w.t.Helper()
	provider, err := local.New(context.Background(), local.Config{Root: w.t.TempDir(), Machine: "m1", Isolation: mode, Path: os.Getenv("PATH"), Log: zerolog.Nop()})
	if err != nil {
		w.t.Fatal(err)
	}
	e := w.executor()
	e.Sandboxes = sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), provider)
	e.Runner.Sandboxes, e.Runner.Provider, e.Runner.OutputCap = e.Sandboxes, "local", 32<<20
	return e
}

const anything = "whatever the system's own words are"

// What commands do to an executor, in both isolations.
func TestCommandsOfEveryKind(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		name, step   string
		want         state
		exit         int
		signal       string
		out          string
		longest      time.Duration
		checkResults func(*world, uuid.UUID)
	}{
		{name: "prints nothing", step: `"shell": "true"`, want: state{runs.Succeeded, "", "completed"}},
		{name: "argv", step: `"argv": ["printf", "%s|", "a b", "$HOME", ""]`, want: state{runs.Succeeded, "", "completed"}, out: "a b|$HOME||"},
		{name: "NUL and no UTF-8", step: `"shell": "printf 'a\\000b\\377\\303('"`, want: state{runs.Succeeded, "", "completed"}, out: "a\x00b\xff\xc3("},
		{name: "a line of ten megabytes", step: `"shell": "head -c 10485760 /dev/zero | tr '\\0' x"`, want: state{runs.Succeeded, "", "completed"}, out: strings.Repeat(long, 10)},
		{name: "fails", step: `"shell": "echo no >&2; exit 3"`, want: state{runs.Failed, "command_failed", "discarded"}, exit: 3, out: "no\n"},
		{name: "exits with 137", step: `"shell": "exit 137"`, want: state{runs.Failed, "command_failed", "discarded"}, exit: 137},
		{name: "kills itself", step: `"shell": "kill -9 $$"`, want: state{runs.Failed, "command_killed", "discarded"}, exit: 137, signal: "SIGKILL"},
		{name: "is not there", step: `"argv": ["no-such-program"]`, want: state{runs.Failed, "command_failed", "discarded"}, exit: 127, out: anything},
		{name: "a child holds its output", step: `"shell": "sleep 300 & echo v1"`, want: state{runs.Succeeded, "", "completed"}, out: "v1\n", longest: 10 * time.Second},
		{name: "out of time with grandchildren", step: `"timeout": "1s", "shell": "trap '' TERM; (trap '' TERM; setsid sleep 300) & sleep 301"`, want: state{runs.Failed, "timeout", "discarded"}, longest: 15 * time.Second},
		{name: "reads its input", step: `"stdin": "in\n", "argv": ["cat"]`, want: state{runs.Succeeded, "", "completed"}, out: "in\n"},
		{name: "files, directory, environment", step: `"dir": "d", "env": {"A": "b c"}, "files": [{"path": "d/f", "content": "text\n"}, {"path": "d/x", "content_base64": "IyEvYmluL3NoCmVjaG8gcmFuCg==", "executable": true}], "shell": "cat f; ./x; echo $A"`, want: state{runs.Succeeded, "", "completed"}, out: "text\nran\nb c\n"},
		{name: "a result with NUL", step: `"argv": ["printf", "%s\\n", "{\"x\": \"a\\u0000b\"}"]`, want: state{runs.Succeeded, "", "completed"}, out: "{\"x\": \"a\\u0000b\"}\n", checkResults: func(w *world, id uuid.UUID) {
			if got := query[string](w, `SELECT result ->> 'x' FROM executor.run_steps WHERE run_id = $1`, id); got != "a\ufffdb" {
				w.t.Errorf("result %q", got)
			}
		}},
		{name: "a result file", step: `"result_file": "r.json", "shell": "echo '[1, 2]' > r.json"`, want: state{runs.Succeeded, "", "completed"}, checkResults: func(w *world, id uuid.UUID) {
			if got := query[string](w, `SELECT result::text FROM executor.run_steps WHERE run_id = $1`, id); got != "[1, 2]" {
				w.t.Errorf("result %q", got)
			}
		}},
		{name: "a result file that is missing", step: `"result_file": "r.json", "shell": "true"`, want: state{runs.Failed, "invalid_output", "discarded"}},
		{name: "a file outside", step: `"files": [{"path": "x/../f", "content": "y"}], "shell": "cat f"`, want: state{runs.Succeeded, "", "completed"}, out: "y"},
	} {
		for _, mode := range []local.Mode{local.Bwrap, local.Plain} {
			t.Run(c.name+", "+string(mode), func(t *testing.T) {
				w := newWorld(t)
				e := w.onMachine(mode)
				w.start(e)
				begun := time.Now()
				id := w.enqueue(`{"stop_grace": "1s", "steps": [{"name": "a", ` + c.step + `}]}`)
				w.await(id, c.want)
				if took := time.Since(begun); c.longest > 0 && took > c.longest {
					t.Errorf("took %v", took)
				}
				out := query[[]byte](w, `SELECT coalesce(string_agg(data, '' ORDER BY seq), '') FROM executor.run_output WHERE run_id = $1`, id)
				if c.out != anything && !bytes.Equal(out, []byte(c.out)) {
					t.Errorf("output: %d bytes, %.100q, want %d", len(out), out, len(c.out))
				}
				if c.want.Status == runs.Failed && c.want.Code[:7] == "command" {
					if code := query[int](w, `SELECT exit_code FROM executor.run_attempts WHERE run_id = $1`, id); code != c.exit {
						t.Errorf("exit status %d", code)
					}
					if signal := query[string](w, `SELECT coalesce(exit_signal, '') FROM executor.run_attempts WHERE run_id = $1`, id); signal != c.signal {
						t.Errorf("signal %q", signal)
					}
				}
				if c.checkResults != nil {
					c.checkResults(w, id)
				}
				w.eventually(func() bool {
					hosts, err := e.Sandboxes.List(context.Background())
					return err == nil && len(hosts) == 0
				},
					func() any { hosts, _ := e.Sandboxes.List(context.Background()); return hosts }, "no host")
			})
		}
	}
}

// Two executors share the work: every step runs once.
func TestTwoExecutorsShareTheWork(t *testing.T) {
	w := newWorld(t)
	const n = 60
	ids := make([]uuid.UUID, n)
	for i := range ids[:n/2] {
		ids[i] = w.enqueue(manySteps)
	}
	w.start(w.executor())
	w.start(w.executor())
	for i := n / 2; i < n; i++ {
		ids[i] = w.enqueue(manySteps)
	}
	for _, id := range ids {
		w.await(id, state{runs.Succeeded, "", "completed"})
	}
	if got := len(w.fake.Started()); got != 4*n {
		t.Errorf("%d processes of %d steps", got, 4*n)
	}
	w.clean()
}

// A cancel at any moment of a run's life ends in exactly one of the two.
func TestCancelRacesTheEnd(t *testing.T) {
	w := newWorld(t)
	w.start(w.executor())
	for i := range 150 {
		id := w.enqueue(oneStep)
		time.Sleep(time.Duration(i%30) * time.Millisecond)
		for how, cancel := range waysToCancel {
			if (how == "river") == (i%2 == 0) {
				cancel(w, id)
			}
		}
		w.eventually(func() bool { return w.state(id).Status.Terminal() }, func() any { return w.state(id) }, "an end")
		got := w.state(id)
		if got != (state{runs.Cancelled, "", "cancelled"}) && got != (state{runs.Succeeded, "", "completed"}) {
			t.Fatalf("%+v", got)
		}
		ends := query[int](w, `SELECT count(*) FROM executor.run_events WHERE run_id = $1 AND kind IN ('succeeded', 'failed', 'cancelled')`, id)
		if ends != 1 {
			t.Fatalf("%d ends in the events", ends)
		}
	}
	w.clean()
}
