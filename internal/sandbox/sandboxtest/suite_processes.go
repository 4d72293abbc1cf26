package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

var processTests = map[string]func(*testing.T, Subject){
	"how it ended": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		n := 0
		for script, want := range ends {
			n++
			b.start(n, shell(script))
			if got := b.follow(n, sandbox.Offsets{}).end(); got != want {
				t.Errorf("%s: %+v, want %+v", script, got, want)
			}
		}
	},
	"no program": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("echo >plain")
		n := 0
		for program, want := range noPrograms {
			n++
			b.start(n, sandbox.Command{Argv: []string{program}})
			f := b.follow(n, sandbox.Offsets{})
			if got := f.end(); got != (sandbox.Exit{Code: want}) || f.stream(sandbox.Stderr) == "" {
				t.Errorf("%s: %+v, want %d and a reason on stderr", program, got, want)
			}
		}
	},
	"input, output, environment, directory": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkdir sub")
		in := odd()
		cmd := shell("tee /dev/stderr; cat >&2; pwd >../where")
		cmd.Stdin, cmd.Dir = in, "sub"
		p := b.start(1, cmd)
		if p.Adopted || time.Since(p.StartedAt).Abs() > time.Minute {
			t.Errorf("started: %+v", p)
		}
		f := b.follow(1, sandbox.Offsets{})
		if got := f.end(); !got.Success() || f.stream(sandbox.Stdout) != string(in) || f.stream(sandbox.Stderr) != string(in) {
			t.Errorf("%+v, %d bytes in, %d and %d out, or not the same",
				got, len(in), len(f.stream(sandbox.Stdout)), len(f.stream(sandbox.Stderr)))
		}
		if where := b.sh("cat where"); !strings.HasSuffix(where, "/sub\n") {
			t.Errorf("it ran in %s", where)
		}
		n := 1
		checkEnvironment(t, func(cmd sandbox.Command) string {
			n++
			b.start(n, cmd)
			f := b.follow(n, sandbox.Offsets{})
			f.end()
			return f.stream(sandbox.Stdout)
		})
	},
	"no output": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell("exit 4"))
		f := b.follow(1, sandbox.Offsets{})
		if got := f.end(); got.Code != 4 || f.stream(sandbox.Stdout)+f.stream(sandbox.Stderr) != "" {
			t.Errorf("%+v, %+v", got, f.brought)
		}
	},
	"output comes while it runs": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkfifo go again")
		b.start(1, shell("echo one; read x <go; echo two; read x <again; exit 6"))
		f := b.follow(1, sandbox.Offsets{})
		f.until("one\n")
		b.sh("echo >go")
		f.until("two\n")
		b.sh("echo >again")
		if got := f.end(); got.Code != 6 {
			t.Errorf("%+v", got)
		}
	},
	"from any offset, any number of times": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell("seq 1 200000; seq 1 100 >&2; exit 2"))
		whole := b.follow(1, sandbox.Offsets{})
		whole.end()
		out, errs := whole.stream(sandbox.Stdout), whole.stream(sandbox.Stderr)
		if !strings.HasSuffix(out, "\n200000\n") || !strings.HasSuffix(errs, "\n100\n") {
			t.Fatalf("%d and %d bytes, or not their end", len(out), len(errs))
		}
		// Any number of them, by whoever, at the same time.
		offsets := []sandbox.Offsets{{}, {Stdout: 1}, {Stdout: 65537, Stderr: 7}, {Stdout: int64(len(out)), Stderr: int64(len(errs))}}
		for range 3 {
			offsets = append(offsets, sandbox.Offsets{Stdout: rand.Int64N(int64(len(out))), Stderr: rand.Int64N(int64(len(errs)))})
		}
		var followings []*following
		for _, from := range offsets {
			followings = append(followings, b.follow(1, from))
		}
		for i, f := range followings {
			from := offsets[i]
			if got := f.end(); got.Code != 2 || f.stream(sandbox.Stdout) != out[from.Stdout:] || f.stream(sandbox.Stderr) != errs[from.Stderr:] {
				t.Errorf("from %+v: %+v, not the same bytes", from, got)
			}
		}
	},
	"started once": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		cmd := shell("echo x >>count; echo ready; sleep 300")
		first := b.start(1, cmd)
		b.follow(1, sandbox.Offsets{}).until("ready")
		for _, other := range []*box{b, b.again()} {
			if p := other.start(1, cmd); !p.Adopted || p.StartedAt.Sub(first.StartedAt).Abs() > 2*time.Second {
				t.Errorf("%+v, want %+v adopted", p, first)
			}
		}
		b.stop(1, 0)
		if p := b.start(1, cmd); !p.Adopted {
			t.Error("started again after its end")
		}
		if out := b.sh("cat count"); out != "x\n" {
			t.Errorf("it ran %d times", len(out)/2)
		}
	},
	"adopted, though its directory is gone": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkdir sub")
		cmd := shell("rmdir ../sub; echo ready; sleep 300")
		cmd.Dir = "sub"
		b.start(1, cmd)
		b.follow(1, sandbox.Offsets{}).until("ready")
		if p := b.start(1, cmd); !p.Adopted {
			t.Error("started again")
		}
		b.stop(1, 0)
	},
	"started once, at the same time": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		var fresh atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			other := b.again()
			wg.Go(func() {
				p, err := other.conn.Start(soon(t), b.launch(1), shell("echo x >>count"))
				if err != nil {
					t.Error("start:", err)
				} else if !p.Adopted {
					fresh.Add(1)
				}
			})
		}
		wg.Wait()
		b.follow(1, sandbox.Offsets{}).end()
		if out := b.sh("cat count"); out != "x\n" || fresh.Load() != 1 {
			t.Errorf("it ran %d times, and %d say that they started it", len(out)/2, fresh.Load())
		}
	},
	"launches are processes of their own": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		launches := []sandbox.Launch{
			{RunID: "r", Step: "a", N: 1}, {RunID: "r", Step: "a", N: 10},
			{RunID: "r", Step: "a", Member: "b", N: 1}, {RunID: "r", Step: "a.b", N: 1},
		}
		for _, l := range launches {
			if _, err := b.conn.Start(b.soon(), l, shell("echo "+l.Name()+"; read x")); err != nil {
				t.Fatal("start:", err)
			}
		}
		for _, l := range launches {
			var out bytes.Buffer
			_, err := b.conn.Follow(b.soon(), l, sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
				out.Write(data)
				return nil
			})
			if err != nil || out.String() != l.Name()+"\n" {
				t.Errorf("%s: %q, %v", l.Name(), out.String(), err)
			}
		}
	},
	"re-attached": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkfifo go")
		b.start(1, shell("echo before; read x <go; echo after; exit 3"))
		first := b.follow(1, sandbox.Offsets{})
		first.until("before\n")
		first.cancel(errors.New("handed over"))
		promptly(t, "letting go", func() { <-first.done })
		if err := b.conn.Close(); err != nil {
			t.Error("close:", err)
		}
		other := b.again()
		rest := other.follow(1, sandbox.Offsets{Stdout: int64(len("before\n"))})
		other.sh("echo >go")
		if got := rest.end(); got.Code != 3 || rest.stream(sandbox.Stdout) != "after\n" {
			t.Errorf("%+v, %q", got, rest.stream(sandbox.Stdout))
		}
	},
	"a sink that fails": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkfifo go")
		b.start(1, shell("echo x; read x <go; exit 3"))
		full := errors.New("full")
		_, err := b.conn.Follow(b.soon(), b.launch(1), sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return full })
		if err != full {
			t.Errorf("got %v", err)
		}
		b.sh("echo >go")
		if got := b.follow(1, sandbox.Offsets{}).end(); got.Code != 3 {
			t.Errorf("the process took notice: %+v", got)
		}
	},
	"a background child holds the output": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(held+"sleep 300 & setsid sleep 300 & (while :; do echo more; sleep 0.01; done) & echo ok; exit 5"))
		f := b.follow(1, sandbox.Offsets{})
		promptly(t, "the end of Follow", func() {
			if got := f.end(); got.Code != 5 {
				t.Errorf("%+v", got)
			}
		})
		f.until("ok\n")
		b.allDead()
	},
	"cancelled": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell("echo ready; sleep 300"))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		f.cancel(errors.New("enough"))
		promptly(t, "the end of Follow", func() { <-f.done })
		if f.err == nil {
			t.Errorf("it ended: %+v", f.exit)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		promptly(t, "start", func() {
			if _, err := b.conn.Start(ctx, b.launch(2), shell("true")); err == nil {
				t.Error("started under a context that is done")
			}
		})
	},
	"never started": func(t *testing.T, s Subject) {
		f := newBox(t, s).follow(1, sandbox.Offsets{})
		promptly(t, "the end of Follow", func() { <-f.done })
		is(t, f.err, faults.SandboxLost)
	},
	"refused": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		for _, cmd := range []sandbox.Command{
			{},
			{Argv: []string{""}},
			{Argv: []string{"true", "a\x00b"}},
			{Argv: []string{"true"}, Dir: ".."},
			{Argv: []string{"true"}, Env: map[string]string{"A": "\x00"}},
			{Argv: []string{"true", strings.Repeat("x", 4<<20)}},
		} {
			_, err := b.conn.Start(b.soon(), b.launch(1), cmd)
			is(t, err, faults.SandboxInvalid)
			if f := faults.Of(err); err != nil && f.Outcome != faults.NotStarted {
				t.Errorf("outcome %q", f.Outcome)
			}
		}
		if p := b.start(1, shell("true")); p.Adopted {
			t.Error("a refused start left a launch")
		}
	},
}
