package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local/cgroup"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// conn is a connection to a host: it holds nothing open.
type conn struct {
	provider *Provider
	dir      hostDir
	network  bool
	group    *cgroup.Group // nil: a host without limits
}

var _ sandbox.Conn = (*conn)(nil)

// Prepare implements sandbox.Conn. A directory needs no helper.
func (c *conn) Prepare(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.present()
}

// Close implements sandbox.Conn.
func (c *conn) Close() error { return nil }

// present returns faults.SandboxNotFound if the host is gone.
func (c *conn) present() error {
	_, err := os.Stat(filepath.Join(string(c.dir), hostFile))
	if errors.Is(err, fs.ErrNotExist) {
		return notFound(filepath.Base(string(c.dir)))
	}
	return fault("look at the host", err)
}

// orGone is err, or that the host is gone where that explains it.
func (c *conn) orGone(err error) error {
	if gone := c.present(); errors.Is(gone, faults.SandboxNotFound) {
		return gone
	}
	return err
}

// prepared is what a command needs to be run.
type prepared struct {
	wrapper []string
	dir     string
	env     []string
}

// prepare checks a command, and marks its environment with the launch. It will
// run in sub, which is still to be made.
func (c *conn) prepare(cmd sandbox.Command, mark string, sub *cgroup.Group) (prepared, error) {
	if len(cmd.Argv) == 0 || cmd.Argv[0] == "" {
		return prepared{}, invalid("a command needs a program")
	}
	for _, arg := range cmd.Argv {
		if strings.ContainsRune(arg, 0) {
			return prepared{}, invalid("an argument holds a NUL byte")
		}
	}
	env, err := c.environment(cmd.Env, mark)
	if err != nil {
		return prepared{}, err
	}
	dir, err := c.workingDir(cmd.Dir)
	if err != nil {
		return prepared{}, err
	}
	wrapper := c.provider.isolation.wrapper(c.dir, dir, c.network)
	if sub != nil {
		wrapper = append(sub.Wrapper(c.provider.shell), wrapper...)
	}
	return prepared{wrapper: wrapper, dir: dir, env: env}, nil
}

func (c *conn) environment(asked map[string]string, mark string) ([]string, error) {
	all := map[string]string{
		"PATH":   defaultPath,
		"HOME":   c.dir.home(),
		"TMPDIR": c.dir.tmp(),
		"LANG":   "C.UTF-8",
	}
	if c.provider.isolation.Mode == Bwrap {
		all["TMPDIR"] = "/tmp"
	}
	for name, value := range asked {
		if !sandbox.ValidEnv(name) || strings.ContainsRune(value, 0) {
			return nil, invalid("%q cannot be an environment variable", name)
		}
		all[name] = value
	}
	all[sandbox.MarkLaunch], all[sandbox.MarkSupervisor] = mark, "1"
	env := make([]string, 0, len(all))
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, nil
}

// workingDir is the absolute path of a directory below the working directory.
func (c *conn) workingDir(dir string) (string, error) {
	root, err := c.files()
	if err != nil {
		return "", err
	}
	defer root.Close()
	if dir == "" {
		dir = "."
	}
	info, err := root.Stat(dir)
	if err != nil {
		return "", invalid("working directory %q: %w", dir, err)
	}
	if !info.IsDir() {
		return "", invalid("working directory %q is no directory", dir)
	}
	return filepath.Join(c.dir.work(), dir), nil
}
