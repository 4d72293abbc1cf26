package docker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// ownDaemon is a daemon of one test, which may break it.
type ownDaemon struct {
	*testing.T
	dir     string
	host    string // its socket
	address string // on TCP, where it has one
	options []string
	before  []string // a program that runs what starts it
}

// startDaemon starts a daemon that has the test image.
func startDaemon(t *testing.T, options ...string) *ownDaemon {
	t.Helper()
	d := newDaemon(t)
	d.start(options...)
	d.image()
	return d
}

// newDaemon is a daemon that was not started yet; what it keeps will be in
// dir/data.
func newDaemon(t *testing.T) *ownDaemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "executor-dockerd-") // short, for its sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &ownDaemon{T: t, dir: dir}
}

func (d *ownDaemon) start(options ...string) {
	d.Helper()
	d.options = options
	d.host = d.ci("start", options...)
	d.Cleanup(func() { d.ci("stop") })
}

func (d *ownDaemon) image() {
	d.Helper()
	if err := buildImage(d.host); err != nil {
		d.Fatal(err)
	}
}

// restart starts a daemon that was killed.
func (d *ownDaemon) restart() { d.ci("start", d.options...) }

func (d *ownDaemon) ci(action string, options ...string) string {
	d.Helper()
	argv := append([]string{"../../../.ci/dockerd", action, d.dir}, options...)
	if action == "start" {
		argv = append(d.before[:len(d.before):len(d.before)], argv...)
	}
	return run(d.T, argv...)
}

// at changes the configuration of a provider to the daemon.
func (d *ownDaemon) at(c *Config) { c.Host = d.host }

func (d *ownDaemon) signal(sig syscall.Signal) {
	d.Helper()
	content, err := os.ReadFile(d.dir + "/dockerd.pid")
	pid, malformed := strconv.Atoi(strings.TrimSpace(string(content)))
	if err := errors.Join(err, malformed); err != nil {
		d.Error(err)
		return
	}
	if err := syscall.Kill(pid, sig); err != nil {
		d.Error(err)
	}
}

// run runs a program of the test's, and returns what it prints.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%q: %v: %s", argv, err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return strings.TrimSpace(string(out))
}
