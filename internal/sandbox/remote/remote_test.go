package remote_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
	"executor/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Executor(func(world string) (sandbox.Provider, error) {
		root, shell, _ := strings.Cut(world, " ")
		return &provider{root: root, shell: shell, path: os.Getenv("PATH")}, nil
	})
	goleak.VerifyTestMain(m)
}

// shells are those that the script meets most, with coreutils. busybox, with its
// own tools, is what the containers of package docker's tests have.
var shells = []string{"dash", "bash"}

func TestConformance(t *testing.T) {
	for _, shell := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			p := &provider{root: t.TempDir(), shell: "/bin/" + shell, path: os.Getenv("PATH")}
			subject := sandboxtest.Subject{
				Open:      func(*testing.T) sandbox.Provider { return p },
				World:     p.root + " " + p.shell,
				SmallDisk: func(t *testing.T) sandbox.Provider { return p.in(tiny(t)) },
				Processes: func(_ *testing.T, q sandbox.Provider, host sandbox.Host) int {
					return len(inHost(q.(interface{ dir(string) string }).dir(host.ID)))
				},
				Left:        func(*testing.T) []string { return left(p.root) },
				SharedFiles: true,
				Light:       true,
				Ceiling: func(_ *testing.T, bytes int64) sandbox.Provider {
					low := *p
					low.ceiling = bytes
					return &low
				},
				GivesBack: true,
			}
			if shell == shells[0] {
				subject.Light = false
				subject.Lined = func(t *testing.T) (sandbox.Provider, sandboxtest.Line) {
					l := newLine()
					return lined{p.in(t.TempDir()), l}, l
				}
			}
			sandboxtest.Suite(t, subject)
		})
	}
}

// provider makes hosts of directories, to which it reaches by running commands
// on this machine.
type provider struct {
	root, shell, path string
	ceiling           int64
}

// in is the same provider with other hosts.
func (p *provider) in(root string) *provider {
	other := *p
	other.root = root
	return &other
}

func (p *provider) Name() string { return "remote" }

func (p *provider) dir(id string) string { return filepath.Join(p.root, "h"+id) }

func (p *provider) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	if ctx.Err() != nil {
		return sandbox.Host{}, context.Cause(ctx)
	}
	id := strings.ReplaceAll(string(spec.Key), ":", "-")
	return p.host(id), os.MkdirAll(p.dir(id), 0o700)
}

func (p *provider) host(id string) sandbox.Host {
	return sandbox.Host{ID: id, Key: sandbox.Key(strings.ReplaceAll(id, "-", ":")), Provider: p.Name()}
}

func (p *provider) Get(ctx context.Context, id string) (sandbox.Host, error) {
	if ctx.Err() != nil {
		return sandbox.Host{}, context.Cause(ctx)
	}
	return p.host(id), p.there(id)
}

func (p *provider) there(id string) error {
	if _, err := os.Stat(p.dir(id)); id == "" || strings.Contains(id, "/") || err != nil {
		return faults.Errorf(faults.SandboxNotFound, "there is no host %q", id)
	}
	return nil
}

func (p *provider) List(ctx context.Context) ([]sandbox.Host, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	entries, err := os.ReadDir(p.root)
	var hosts []sandbox.Host
	for _, e := range entries {
		hosts = append(hosts, p.host(strings.TrimPrefix(e.Name(), "h")))
	}
	return hosts, err
}

// Delete kills what works in the directory, and removes it.
func (p *provider) Delete(ctx context.Context, id string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.there(id) != nil {
		return nil
	}
	gone := p.dir(id) + "-gone"
	if err := os.Rename(p.dir(id), gone); err != nil {
		return err
	}
	for clean := 0; clean < 3; clean++ { // what forks may pass behind a look
		for pid := range inHost(gone) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			clean = 0
		}
	}
	_ = exec.Command("chmod", "-R", "u+w", gone).Run()
	return os.RemoveAll(gone)
}

func (p *provider) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	h := &local{provider: p, id: host.ID}
	return remote.New(h, remote.Config{Shell: p.shell, Base: "base", OutputCeiling: p.ceiling}), nil
}

// local is a way to a host that is a directory.
type local struct {
	*provider
	id string
}

func (h *local) Close() error                   { return nil }
func (h *local) Diagnose(context.Context) error { return h.there(h.id) }

func (h *local) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	if err := h.there(h.id); err != nil {
		return 0, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = h.dir(h.id), []string{"PATH=" + h.path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	var copied sync.WaitGroup
	var outs [2]error
	var pipes []io.Closer
	for i, o := range []struct {
		pipe func() (io.ReadCloser, error)
		to   io.Writer
	}{{cmd.StdoutPipe, stdio.Out}, {cmd.StderrPipe, stdio.Err}} {
		from, err := o.pipe()
		if err != nil {
			return 0, err
		}
		pipes = append(pipes, from)
		copied.Go(func() {
			if _, err := io.Copy(o.to, from); !errors.Is(err, os.ErrClosed) {
				outs[i] = err
			}
		})
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		if stdio.In != nil {
			_, _ = io.Copy(stdin, stdio.In)
		}
		stdin.Close()
	}()
	ended := make(chan error, 1)
	go func() { copied.Wait(); _ = cmd.Wait(); ended <- errors.Join(outs[:]...) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stdin.Close()
	for _, p := range pipes {
		p.Close()
	}
	copied.Wait()
	if err != nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}
