package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// lined is the subject over a line of the test's own.
func lined(t *testing.T, s Subject) (Subject, sandbox.Provider, Line) {
	t.Helper()
	p, line := s.Lined(t)
	s.Open = func(*testing.T) sandbox.Provider { return p }
	return s, p, line
}

// noticed is how long it may take to see that a connection is cut: it may look
// like an end, which is then waited for in vain.
const noticed = 3 * prompt

var lineTests = map[string]func(*testing.T, Subject){
	// Cut again and again, no byte is missing and none comes twice.
	"followed across cuts": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		b.sh("mkfifo go")
		b.start(1, shell(`read x <go; seq 1 300000; seq 1 300000 >&2; echo more; read x <go; echo end; exit 3`))
		f := b.follow(1, sandbox.Offsets{})
		for _, cut := range []func(){
			func() { b.sh("echo >go") },    // before the first byte
			func() { f.until("\n100\n") },  // in the middle
			func() { f.until("200000\n") }, // once more
			func() { f.until("more\n") },   // while it says nothing
		} {
			cut()
			line.Cut()
		}
		retried(t, "exec", func() error {
			_, err := b.conn.Exec(b.soon(), shell("echo >go"), sandbox.Stdio{})
			return err
		})
		if got := f.end(); got.Code != 3 {
			t.Errorf("%+v", got)
		}
		want := numbers(300000)
		if f.stream(sandbox.Stdout) != want+"more\nend\n" || f.stream(sandbox.Stderr) != want {
			t.Errorf("%d and %d bytes, or others", len(f.stream(sandbox.Stdout)), len(f.stream(sandbox.Stderr)))
		}
		b.asBefore()
	},
	"exec, cut": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		cut := sync.OnceFunc(line.Cut)
		out := writerFunc(func(p []byte) (int, error) { cut(); return len(p), nil })
		within(t, noticed, "exec", func() {
			_, err := b.conn.Exec(b.soon(), shell(held+stubborn["in another session"]), sandbox.Stdio{Out: out})
			isCut(t, err)
			if f := faults.Of(err); err != nil && f.Outcome == faults.NotStarted {
				t.Error("it says that it was not started")
			}
		})
		cut() // is over
		// What it ran is ended, by us or for want of us.
		if !eventually(b.free) {
			t.Error("something of the tree is alive")
		}
		b.asBefore()
	},
	"upload, cut": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		b.sh("echo old >file")
		cut := sync.OnceFunc(line.Cut)
		within(t, noticed, "upload", func() {
			isCut(t, b.conn.Upload(b.soon(), "file", 0o600, io.LimitReader(endless(cut), 64<<20)))
		})
		cut() // is over
		var left string
		if !eventually(func() bool { left = b.sh("cat file; ls -A"); return left == "old\nfile\n" }) {
			t.Errorf("left %.100q", left)
		}
		retried(t, "upload", func() error { return b.conn.Upload(b.soon(), "file", 0o600, bytes.NewReader([]byte("new\n"))) })
		if out := b.sh("cat file"); out != "new\n" {
			t.Errorf("got %q", out)
		}
		b.asBefore()
	},
	// A file that broke off is never taken for a whole one.
	"download, cut": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		b.sh("head -c 67108864 /dev/zero >big")
		file, err := b.conn.Download(b.soon(), "big")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := io.CopyN(io.Discard, file, 1<<20); err != nil {
			t.Fatal(err)
		}
		line.Cut()
		within(t, noticed, "the end of the file", func() {
			n, err := io.Copy(io.Discard, file)
			if err == nil {
				t.Errorf("it ended after %d bytes", n)
			} else {
				isCut(t, err)
			}
		})
		b.sh("true")
		b.asBefore()
	},
	// Whatever became of it, to start it again is to start it once.
	"start, cut": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		took := time.Now()
		b.start(100, sandbox.Command{Argv: []string{"true"}, Stdin: make([]byte, 4<<20)})
		takes := time.Since(took)
		for n := range 3 {
			cmd := shell(fmt.Sprintf("echo x >>count%d", n))
			cmd.Stdin = make([]byte, 4<<20)
			cut := make(chan struct{})
			time.AfterFunc(takes*time.Duration(n)/3, func() { line.Cut(); close(cut) })
			_, err := b.conn.Start(b.soon(), b.launch(n+1), cmd)
			<-cut
			if err != nil {
				isCut(t, err)
			}
			retried(t, "start", func() error { _, err := b.conn.Start(b.soon(), b.launch(n+1), cmd); return err })
			if got := b.follow(n+1, sandbox.Offsets{}).end(); !got.Success() {
				t.Errorf("%+v", got)
			}
			if out := b.sh(fmt.Sprintf("cat count%d", n)); out != "x\n" {
				t.Errorf("it ran %d times", len(out)/2)
			}
		}
		b.asBefore()
	},
	"stop, cut": func(t *testing.T, s Subject) {
		s, _, line := lined(t, s)
		b := newBox(t, s).settled()
		b.start(1, shell(held+stubborn["TERM is ignored"]))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		cut := make(chan struct{})
		time.AfterFunc(200*time.Millisecond, func() { line.Cut(); close(cut) })
		if err := b.conn.Stop(b.soon(), b.launch(1), 2*time.Second); err != nil {
			isCut(t, err)
		}
		<-cut
		retried(t, "stop", func() error { return b.conn.Stop(b.soon(), b.launch(1), 0) })
		if got := f.end(); got.Signal == "" {
			t.Errorf("%+v", got)
		}
		b.allDead()
		b.asBefore()
	},
	// A create whose answer is lost may have made a host: the next one under the
	// key ends with one host, and when that is deleted there is none.
	"create, cut": func(t *testing.T, s Subject) {
		s, p, line := lined(t, s)
		u := newUser(t, s, p)
		began := time.Now()
		host, err := p.Create(u.soon(), sandbox.HostSpec{Key: newKey(), RunID: t.Name()})
		if err != nil {
			t.Fatal("create:", err)
		}
		takes := time.Since(began)
		remove(t, u.soon(), p, host)
		for _, tenths := range []time.Duration{1, 5, 8} {
			cut := make(chan struct{})
			err := u.try(u.soon(), hostOperations[0], 0, func() {
				time.AfterFunc(takes*tenths/10, func() { line.Cut(); close(cut) })
			})
			if err != nil {
				is(t, err, faults.SandboxProvisioning)
			}
			<-cut
			time.Sleep(takes) // what goes on there without us comes to its end
			u.check(hostOperations[0])
		}
	},
	// A line that holds everything back keeps nobody who has been told to go.
	"frozen, cancelled": func(t *testing.T, s Subject) {
		s, p, line := lined(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var done sync.WaitGroup
		frozen := make(chan struct{})
		whole := newUser(t, s, p)
		var after []func()
		for i, op := range slices.Concat(hostOperations, processOperations, lasting) {
			u := whole.another(i + 1)
			arrived := make(chan struct{})
			done.Go(func() {
				arrive := sync.OnceFunc(func() { close(arrived) })
				defer arrive()
				var began time.Time
				err := u.try(ctx, op, 0, func() { arrive(); <-frozen; began = time.Now() })
				// Some need nothing of the line.
				if err != nil && (!errors.Is(err, errEnough) || faults.Classified(err)) {
					t.Errorf("%s: %v", op.name, err)
				}
				if took := time.Since(began); took > 2*prompt {
					t.Errorf("%s took %s", op.name, took)
				}
			})
			<-arrived // one by one, since a busy sshd drops who knocks
			after = append(after, func() { u.check(op) })
		}
		thaw := line.Freeze()
		defer thaw()
		close(frozen)
		time.AfterFunc(300*time.Millisecond, func() { cancel(errEnough) })
		done.Wait()
		thaw()
		for _, check := range after {
			check()
		}
		whole.unharmed()
	},
}

// isCut checks the error of an operation whose connection was cut under it: of
// what runs on there, a stream that ended too soon may be all that is seen.
func isCut(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, faults.SandboxUnavailable) && !errors.Is(err, faults.SandboxLost) {
		t.Errorf("got %v", err)
	}
}

// retried does what a cut may hit too late.
func retried(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	if !eventually(func() bool { err = f(); return err == nil || !errors.Is(err, faults.SandboxUnavailable) }) || err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func numbers(n int) string {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}
