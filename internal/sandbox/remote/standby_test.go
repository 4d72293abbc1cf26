package remote_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
)

// seen is what a Follow handed over.
type seen struct {
	from           int64 // where stdout begins
	stdout, stderr strings.Builder
}

func (s *seen) sink(stream sandbox.Stream, offset int64, data []byte) error {
	to, at := &s.stdout, s.from
	if stream == sandbox.Stderr {
		to, at = &s.stderr, 0
	}
	if at += int64(to.Len()); offset != at {
		return fmt.Errorf("%s at %d, want %d", stream, offset, at)
	}
	to.Write(data)
	return nil
}

// A Follow after a Start is the same command in the host.
func TestStartGoesOn(t *testing.T) {
	t.Parallel()
	w, conn, _ := started(t, "echo out; echo err >&2; head -c 300000 /dev/zero; exit 4")
	var got seen
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, got.sink)
	if err != nil || exit.Code != 4 {
		t.Errorf("%+v, %v", exit, err)
	}
	if out := got.stdout.String(); out != "out\n"+strings.Repeat("\x00", 300000) || got.stderr.String() != "err\n" {
		t.Errorf("%d bytes, %q", len(out), got.stderr.String())
	}
	if n := w.follows(); n != 0 {
		t.Errorf("%d more followers", n)
	}
	// Once: the next Follow has one of its own.
	var again seen
	if _, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, again.sink); err != nil || again.stdout.String() != got.stdout.String() {
		t.Errorf("%v, %d bytes", err, again.stdout.Len())
	}
	if n := w.follows(); n != 1 {
		t.Errorf("%d more followers", n)
	}
}

// Whoever has seen a part of it already gets the rest.
func TestFollowFromFurtherOn(t *testing.T) {
	t.Parallel()
	_, conn, _ := started(t, "echo one; echo two")
	got := seen{from: 4}
	if _, err := conn.Follow(t.Context(), launch, sandbox.Offsets{Stdout: 4}, got.sink); err != nil || got.stdout.String() != "two\n" {
		t.Errorf("%q, %v", got.stdout.String(), err)
	}
}

// The way breaks between Start and Follow.
func TestCutBeforeFollow(t *testing.T) {
	t.Parallel()
	w, conn, _ := started(t, "echo one; sleep 0.3; echo two")
	w.cut()
	w.mend()
	var got seen
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, got.sink)
	if err != nil || !exit.Success() || got.stdout.String() != "one\ntwo\n" {
		t.Errorf("%+v, %v, %q", exit, err, got.stdout.String())
	}
	if w.follows() == 0 {
		t.Error("it was not cut")
	}
}

// A cancelled Follow ends the follower, and not the process.
func TestCancelledOnStandby(t *testing.T) {
	t.Parallel()
	_, conn, dir := started(t, "until [ -e go ]; do sleep 0.01; done; echo done")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("because")
	time.AfterFunc(200*time.Millisecond, func() { cancel(why) })
	if _, err := conn.Follow(ctx, launch, sandbox.Offsets{}, nil); !errors.Is(err, why) {
		t.Error(err)
	}
	nobodyFollows(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "base/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var got seen
	if exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, got.sink); err != nil || !exit.Success() || got.stdout.String() != "done\n" {
		t.Errorf("%+v, %v, %q", exit, err, got.stdout.String())
	}
}

// Nobody follows: with the connection the follower ends, and the process does
// not.
func TestClosedOnStandby(t *testing.T) {
	t.Parallel()
	_, conn, dir := started(t, "yes | head -c 1000000; sleep 300")
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	nobodyFollows(t, dir)
	if _, err := os.Stat(filepath.Join(dir, "base/run", launch.Name(), "exit")); err == nil {
		t.Error("the process ended")
	}
}

// A Start that is cancelled while it waits for the host leaves nothing behind
// that waits for a Follow.
func TestStartCancelled(t *testing.T) {
	t.Parallel()
	_, conn, dir := started(t, "sleep 300")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("because")
	other := launch
	other.N++
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := conn.Start(ctx, other, sandbox.Command{Argv: []string{"sleep", "300"}, Stdin: make([]byte, 50<<20)}); err != nil && !errors.Is(err, why) {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	nobodyFollows(t, dir)
}

// nobodyFollows waits until no operation is in the host any more.
func nobodyFollows(t *testing.T, dir string) {
	t.Helper()
	var helpers []string
	for range 100 {
		helpers = helpers[:0]
		for pid := range inHost(dir) {
			argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if op := operation(strings.Split(string(argv), "\x00")); op != "" {
				helpers = append(helpers, op)
			}
		}
		if len(helpers) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("there is still %v", slices.Sorted(slices.Values(helpers)))
}

// A process of a host without setsid is in the group of what started it.
func TestStartWithoutSetsid(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, dir := range []string{"/usr/bin", "/bin"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "setsid" {
				_ = os.Symlink(filepath.Join(dir, e.Name()), filepath.Join(path, e.Name()))
			}
		}
	}
	w, conn, _ := startedIn(t, path, "sleep 0.5; echo done")
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	var got seen
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, got.sink)
	if err != nil || !exit.Success() || got.stdout.String() != "done\n" || w.follows() != 1 {
		t.Errorf("%+v, %v, %q, %d followers", exit, err, got.stdout.String(), w.follows())
	}
}

// mixed is a way that carries both streams in one, stdout first: what comes on
// stderr waits for something on stdout, and for whoever takes that.
type mixed struct{ remote.Host }

func (m mixed) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	if operation(argv) != "start" {
		return m.Host.Run(ctx, argv, stdio)
	}
	first := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, errs, stop := stdio.Out, stdio.Err, sync.OnceFunc(func() { close(first) })
	stdio.Out = writerFunc(func(p []byte) (int, error) { defer stop(); return out.Write(p) })
	stdio.Err = writerFunc(func(p []byte) (int, error) {
		select {
		case <-first:
			return errs.Write(p)
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	return m.Host.Run(ctx, argv, stdio)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOutputBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w, _, _ := started(t, "true")
	conn := remote.New(mixed{w.Host}, remote.Config{Shell: "/bin/sh", Base: "base"})
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other := launch
	other.N++
	if _, err := conn.Start(ctx, other, sandbox.Command{Argv: []string{"sh", "-c", "echo out; echo err >&2"}}); err != nil {
		t.Fatal(err)
	}
	var got seen
	exit, err := conn.Follow(ctx, other, sandbox.Offsets{}, got.sink)
	if err != nil || !exit.Success() || got.stdout.String() != "out\n" || got.stderr.String() != "err\n" {
		t.Errorf("%+v, %v, %q, %q", exit, err, got.stdout.String(), got.stderr.String())
	}
}
