package remote_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
	"executor/internal/sandbox/sandboxtest"
)

// lined is a provider whose hosts are behind a line.
type lined struct {
	*provider
	*line
}

func (p lined) Dial(_ context.Context, host sandbox.Host) (sandbox.Conn, error) {
	way := behind{&local{provider: p.provider, id: host.ID}, p.line}
	return remote.New(way, remote.Config{Shell: p.shell, Base: "base", Retry: retry}), nil
}

// line is a sandboxtest.Line of commands that run.
type line struct {
	mu    sync.Mutex
	whole context.Context
	cut   context.CancelFunc
	flows chan struct{} // closed while something comes through
}

func newLine() *line {
	l := &line{flows: make(chan struct{})}
	close(l.flows)
	l.whole, l.cut = context.WithCancel(context.Background())
	return l
}

func (l *line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut()
	l.whole, l.cut = context.WithCancel(context.Background())
}

func (l *line) Freeze() (thaw func()) {
	frozen := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows = frozen
	return sync.OnceFunc(func() { close(frozen) })
}

// wait waits while the line is frozen.
func (l *line) wait(ctx context.Context) error {
	l.mu.Lock()
	flows := l.flows
	l.mu.Unlock()
	select {
	case <-flows:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// behind is a host behind a line.
type behind struct {
	*local
	line *line
}

func (b behind) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	b.line.mu.Lock()
	whole := b.line.whole
	b.line.mu.Unlock()
	held, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(whole, cancel)()
	broken := func(err error) error {
		if ctx.Err() != nil || whole.Err() == nil {
			return err
		}
		return faults.New(faults.SandboxUnavailable, "run", errors.New("the connection broke"))
	}
	if err := b.line.wait(held); err != nil {
		return 0, broken(err)
	}
	stdio.Out, stdio.Err = flow{stdio.Out, held, b.line}, flow{stdio.Err, held, b.line}
	status, err := b.local.Run(held, argv, stdio)
	return status, broken(err)
}

type flow struct {
	to   io.Writer
	ctx  context.Context
	line *line
}

func (f flow) Write(p []byte) (int, error) {
	if err := f.line.wait(f.ctx); err != nil {
		return 0, err
	}
	return f.to.Write(p)
}

// inHost is what works in a host's directory: pids and command lines.
func inHost(dir string) map[int]string {
	found := map[int]string{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		if cwd, _ := os.Readlink(proc + "/cwd"); strings.HasPrefix(cwd, dir) {
			line, _ := os.ReadFile(proc + "/cmdline")
			pid, _ := strconv.Atoi(filepath.Base(proc))
			found[pid] = string(line)
		}
	}
	return found
}

// left is what is left in a root without hosts.
func left(root string) []string {
	left := slices.Collect(maps.Values(inHost(root)))
	entries, _ := os.ReadDir(root)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	return left
}

// tiny is a root on a file system of 4 MB.
func tiny(t *testing.T) string {
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("only root can mount:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
			t.Error("unmount:", err)
		}
	})
	return root
}

var _ sandboxtest.Line = (*line)(nil)
