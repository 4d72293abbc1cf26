package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sort"
	"strings"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// ends are scripts and how they end. An exit with 130 or 141 is not among them:
// no shell can tell it from SIGINT or SIGPIPE.
var ends = map[string]sandbox.Exit{
	"exit 0":        {},
	"exit 7":        {Code: 7},
	"exit 137":      {Code: 137},
	"exit 143":      {Code: 143},
	"exit 255":      {Code: 255},
	"kill -KILL $$": {Code: 137, Signal: "SIGKILL"},
	"kill -SEGV $$": {Code: 139, Signal: "SIGSEGV"},
	"kill -TERM $$": {Code: 143, Signal: "SIGTERM"},
	"kill -INT $$":  {Code: 130, Signal: "SIGINT"},
	"kill -PIPE $$": {Code: 141, Signal: "SIGPIPE"},
	"kill -TERM 0":  {Code: 143, Signal: "SIGTERM"},
	"trap 'exit 5' TERM; kill -TERM $$; sleep 0": {Code: 5},
	"sh -c 'kill -KILL $$'; exit 9":              {Code: 9},
}

// noPrograms are command lines without a program, with a shell's statuses.
var noPrograms = map[string]int{
	"no-such-program": 127,
	"./no-such-file":  127,
	"exit":            127, // builtins of a shell are no programs
	"cd":              127,
	"a=b":             127,
	"./plain":         126, // is there and not executable
}

// odd is what a text protocol would break.
func odd() []byte {
	line := bytes.Repeat([]byte("x"), 10<<20)
	return append(append([]byte("a\x00b\xff\xfe\xc3\x28\r\n\xed\xa0\x80"), line...), 0, '\n', 0xff)
}

var execTests = map[string]func(*testing.T, Subject){
	"how it ended": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		for script, want := range ends {
			if got := b.exec(shell(script)); got.Exit != want {
				t.Errorf("%s: %+v, want %+v", script, got, want)
			}
		}
	},
	"no program": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("echo >plain")
		for program, want := range noPrograms {
			if got := b.exec(sandbox.Command{Argv: []string{program}}); got.Exit != (sandbox.Exit{Code: want}) || got.err == "" {
				t.Errorf("%s: %+v, want %d and a reason on stderr", program, got, want)
			}
		}
		_, err := b.conn.Exec(b.soon(), sandbox.Command{}, sandbox.Stdio{})
		is(t, err, faults.SandboxInvalid)
	},
	"arguments as they are": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		args := []string{"", " ", "a b", "$HOME", "*", "'", `"`, `\`, "\n", "-n", "--", "\xff", "ü", "a=b", ";", "$(exit)"}
		got := b.exec(sandbox.Command{Argv: append([]string{"printf", "%s\\0"}, args...)})
		if want := strings.Join(args, "\x00") + "\x00"; got.out != want {
			t.Errorf("%q, want %q", got.out, want)
		}
	},
	"bytes in and out": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		var out, errs bytes.Buffer
		in := odd()
		exit, err := b.conn.Exec(b.soon(), shell("tee /dev/stderr"), sandbox.Stdio{In: bytes.NewReader(in), Out: &out, Err: &errs})
		if err != nil || !exit.Success() {
			t.Fatalf("%+v, %v", exit, err)
		}
		if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errs.Bytes(), in) {
			t.Errorf("%d bytes in, %d and %d out, or not the same", len(in), out.Len(), errs.Len())
		}
	},
	"no input": func(t *testing.T, s Subject) {
		if out := newBox(t, s).sh("cat; echo end"); out != "end\n" {
			t.Errorf("got %q", out)
		}
	},
	"input that nobody reads": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		never, w := io.Pipe()
		defer w.Close()
		for _, in := range []io.Reader{bytes.NewReader(make([]byte, 1<<20)), never} {
			promptly(t, "exec", func() {
				exit, err := b.conn.Exec(b.soon(), shell("exit 3"), sandbox.Stdio{In: in})
				if err != nil || exit.Code != 3 {
					t.Errorf("%+v, %v", exit, err)
				}
			})
		}
	},
	"the environment": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		checkEnvironment(t, func(cmd sandbox.Command) string { return b.exec(cmd).out })
		for _, name := range []string{"", "a=b", "1a", "a b", "a-b", "a\x00b"} {
			cmd := shell("true")
			cmd.Env = map[string]string{name: "x"}
			_, err := b.conn.Exec(b.soon(), cmd, sandbox.Stdio{})
			is(t, err, faults.SandboxInvalid)
		}
	},
	"the working directory": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		top := b.sh("mkdir -p a/b; ln -s / out; echo >file; pwd")
		cmd := shell("pwd")
		cmd.Dir = "a/b"
		if got, want := b.exec(cmd).out, strings.TrimSpace(top)+"/a/b\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, dir := range []string{"..", "/", "a/../..", "out", "out/etc", "none", "file"} {
			cmd.Dir = dir
			_, err := b.conn.Exec(b.soon(), cmd, sandbox.Stdio{})
			is(t, err, faults.SandboxInvalid)
		}
	},
	"a background child holds the output": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		promptly(t, "exec", func() {
			if out := b.sh(held + "sleep 300 & setsid sleep 300 & echo ok"); out != "ok\n" {
				t.Errorf("got %q", out)
			}
		})
		b.allDead()
	},
	"cancelled": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		ctx, cancel := context.WithCancelCause(b.soon())
		enough := errors.New("enough")
		out := writerFunc(func(p []byte) (int, error) { cancel(enough); return len(p), nil })
		promptly(t, "exec", func() {
			_, err := b.conn.Exec(ctx, shell(held+"trap '' TERM; setsid sleep 300 & echo ready; sleep 300; sleep 300"), sandbox.Stdio{Out: out})
			if err == nil {
				t.Error("it succeeded")
			}
		})
		b.allDead()
	},
	"a writer that fails": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		full := errors.New("full")
		_, err := b.conn.Exec(b.soon(), shell("echo x"), sandbox.Stdio{Out: writerFunc(func([]byte) (int, error) { return 0, full })})
		if !errors.Is(err, full) {
			t.Errorf("got %v", err)
		}
	},
}

// checkEnvironment checks that a command gets what it is given, the provider's
// minimum, and nothing else but marks and what shells add.
func checkEnvironment(t *testing.T, run func(sandbox.Command) string) {
	t.Helper()
	given := map[string]string{"A": "1", "_b2": "two words\nand a line $A '\"", "EMPTY": "", "LANG": "xx", "BYTES": "\xff\x01"}
	names := func(env string) (names []string) {
		for _, entry := range strings.Split(env, "\x00") {
			name, value, _ := strings.Cut(entry, "=")
			switch want, isGiven := given[name]; {
			case isGiven && value != want:
				t.Errorf("%s=%q, want %q", name, value, want)
			case name != "" && name != "_" && name != sandbox.MarkLaunch:
				names = append(names, name)
			}
		}
		sort.Strings(names)
		return names
	}
	got := names(run(sandbox.Command{Argv: []string{"env", "-0"}, Env: given}))
	if got, want := strings.Join(got, " "), "A BYTES EMPTY HOME LANG PATH TMPDIR _b2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
