package remote_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
)

var launch = sandbox.Launch{RunID: "run", Step: "step", N: 1}

// wire is a way to a host that can be cut.
type wire struct {
	remote.Host
	brief bool // it breaks as soon as something comes

	mu    sync.Mutex
	whole context.Context
	cut   context.CancelFunc
	ops   []string
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole, w.cut = context.WithCancel(context.Background())
}

func (w *wire) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	w.mu.Lock()
	whole := w.whole
	op := operation(argv)
	w.ops = append(w.ops, op)
	w.mu.Unlock()
	broken := func() error {
		return faults.New(faults.SandboxUnavailable, "run", errors.New("the connection broke"))
	}
	if whole.Err() != nil {
		return 0, broken()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(whole, cancel)()
	if w.brief && op == "follow" {
		stdio.Out = &once{stdio.Out, cancel}
		whole = ctx
	}
	status, err := w.Host.Run(ctx, argv, stdio)
	if whole.Err() != nil {
		return 0, broken()
	}
	return status, err
}

// operation is which one of remote.sh it is that argv runs.
func operation(argv []string) string {
	for _, op := range []string{"prepare", "start", "follow", "stop"} {
		if slices.Contains(argv, op) {
			return op
		}
	}
	return ""
}

// follows is how many followers there were, besides the one that began as a start.
func (w *wire) follows() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range w.ops {
		if op == "follow" {
			n++
		}
	}
	return n
}

type once struct {
	io.Writer
	then func()
}

func (o *once) Write(p []byte) (int, error) {
	defer o.then()
	return o.Writer.Write(p)
}

// Of the followers here.
const (
	patience = time.Second
	retry    = 100 * time.Millisecond
)

// started is a process of a host behind a wire, and the host's directory.
func started(t *testing.T, script string) (*wire, sandbox.Conn, string) {
	t.Helper()
	return startedIn(t, os.Getenv("PATH"), script)
}

// startedIn is started where the host's programs are in path.
func startedIn(t *testing.T, path, script string) (*wire, sandbox.Conn, string) {
	t.Helper()
	p := &provider{root: t.TempDir(), shell: "/bin/sh", path: path}
	host, err := p.Create(t.Context(), sandbox.HostSpec{Key: "host"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Delete(context.Background(), host.ID); err != nil {
			t.Error("delete:", err)
		}
	})
	w := &wire{Host: &local{provider: p, id: host.ID}}
	w.mend()
	conn := remote.New(w, remote.Config{Shell: p.shell, Base: "base", Patience: patience, Retry: retry})
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	if err := conn.Prepare(t.Context()); err != nil {
		t.Fatal("prepare:", err)
	}
	cmd := sandbox.Command{Argv: []string{"sh", "-c", script}}
	if _, err := conn.Start(t.Context(), launch, cmd); err != nil {
		t.Fatal("start:", err)
	}
	return w, conn, p.dir(host.ID)
}

// A process that is quiet for longer than the patience with its host, from the
// beginning and after a while, and a host that then is away for a moment.
func TestQuietThenCut(t *testing.T) {
	t.Parallel()
	w, conn, dir := started(t, `for i in 1 2; do until [ -e go.$i ]; do sleep 0.01; done; echo $i; done; exit 3`)
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, "base/work", name), nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	var out strings.Builder
	more := make(chan bool, 8)
	go func() {
		for _, i := range []string{"1", "2"} {
			time.Sleep(patience * 3 / 2)
			w.cut()
			touch("go." + i)
			time.Sleep(patience / 4)
			w.mend()
			<-more
		}
	}()
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, func(_ sandbox.Stream, offset int64, data []byte) error {
		if offset != int64(out.Len()) {
			t.Errorf("offset %d after %d bytes", offset, out.Len())
		}
		out.Write(data)
		more <- true
		return nil
	})
	if err != nil || exit.Code != 3 || out.String() != "1\n2\n" {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
	if n := w.follows(); n < 2 {
		t.Errorf("%d more followers: it was not cut", n)
	}
}

// Patience counts from the cut, and has an end.
func TestQuietThenGone(t *testing.T) {
	t.Parallel()
	w, conn, _ := started(t, "sleep 300; sleep 300")
	var cut time.Time
	time.AfterFunc(patience*3/2, func() { cut = time.Now(); w.cut() })
	_, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, nil)
	if took := time.Since(cut); !errors.Is(err, faults.SandboxUnavailable) || took < patience {
		t.Errorf("%v, %s after the cut", err, took)
	}
}

// A host that answers and breaks off, again and again.
func TestFollowersThatBreakOff(t *testing.T) {
	t.Parallel()
	w, conn, _ := started(t, "sleep 300; sleep 300")
	w.cut()
	w.mend()
	w.brief = true
	ctx, cancel := context.WithTimeout(t.Context(), 30*patience)
	defer cancel()
	if _, err := conn.Follow(ctx, launch, sandbox.Offsets{}, nil); !errors.Is(err, faults.SandboxUnavailable) {
		t.Error(err)
	}
}

// Whoever found a process above the ceiling died before it was stopped.
func TestOverAndAlive(t *testing.T) {
	t.Parallel()
	_, conn, dir := started(t, "echo x; sleep 300; sleep 300")
	if err := os.WriteFile(filepath.Join(dir, "base/run", launch.Name(), "over"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*patience)
	defer cancel()
	got := ""
	_, err := conn.Follow(ctx, launch, sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
		got += string(data)
		return nil
	})
	if !errors.Is(err, faults.SandboxDiskFull) {
		t.Errorf("%v, %q", err, got)
	}
}
