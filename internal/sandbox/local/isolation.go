package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"executor/internal/faults"
)

// Mode says how processes are kept apart from the machine.
type Mode string

const (
	Auto  Mode = "auto"  // of Config: Bwrap where it works, else Plain
	Bwrap Mode = "bwrap" // bubblewrap
	Plain Mode = "plain" // nothing but a session and an environment of their own
)

// Isolation is what stands between processes and the machine.
type Isolation struct {
	Mode  Mode     // Bwrap or Plain
	Bwrap string   // its path
	Why   string   // why not Bwrap
	Open  []string // what is not isolated, a phrase each
	root  string
	hide  []string
}

// hidden is always hidden: the sockets of the machine's services, of which one
// alone (Docker's) would open everything, and its passwords.
var hidden = []string{"/run", "/etc/shadow", "/etc/gshadow"}

var (
	openInBwrap = []string{
		"the machine's files can be read, but for " + strings.Join(hidden, ", ") + ", the directories of hosts and what the configuration hides",
		"a host with network access shares the machine's network, its loopback services included",
	}
	openInPlain = []string{
		"processes can read and write whatever the executor's user can, other hosts included",
		"the network is open even where a run asks for none",
		"processes can see and signal each other and the executor",
	}
)

// open is what a mode and limits leave open.
func open(mode Mode, limits Limits) []string {
	phrases := slices.Clone(openInBwrap)
	switch {
	case mode == Bwrap:
	case limits == (Limits{}):
		phrases = append(slices.Clone(openInPlain),
			"a process that clears its environment and outlives its parent may not be found when its step ends",
			"nor may one that forks and ends, without a pause, for ever")
	default:
		phrases = append(slices.Clone(openInPlain),
			"a process may leave its limits, and its step's end behind, where the executor's user can write to other cgroups")
	}
	for _, resource := range []struct {
		name    string
		limited bool
	}{
		{"memory", limits.MemoryBytes > 0},
		{"CPU time", limits.CPUs > 0},
		{"the number of processes", limits.PIDs > 0},
		{"disk space", false},
	} {
		if !resource.limited {
			phrases = append(phrases, resource.name+" is not limited")
		}
	}
	return phrases
}

// isolate finds out, by trying, what the machine allows.
func isolate(ctx context.Context, cfg Config, root string) (Isolation, error) {
	plain := Isolation{Mode: Plain, Open: open(Plain, cfg.Limits), Why: "the configuration says so"}
	if cfg.Isolation == Plain {
		return plain, nil
	}
	path, err := cfg.Bwrap, error(nil)
	if path == "" {
		path, err = lookPath("bwrap", cfg.Path)
	}
	i := Isolation{Mode: Bwrap, Bwrap: path, Open: open(Bwrap, cfg.Limits), root: root, hide: append(hidden[:len(hidden):len(hidden)], cfg.Hide...)}
	if err == nil {
		for range tries {
			if err = i.probe(ctx); err == nil {
				break
			}
		}
	}
	switch {
	case err == nil:
		return i, nil
	case ctx.Err() != nil:
		return Isolation{}, context.Cause(ctx)
	case cfg.Isolation == Bwrap:
		return Isolation{}, faults.New(faults.SandboxUnsupported, "try bubblewrap", err)
	}
	plain.Why = err.Error()
	return plain, nil
}

// probe runs true in a host of its own with everything that a real one has.
func (i Isolation) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp(i.root, newPrefix+"*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := hostDir(dir)
	for _, sub := range []string{d.work(), d.home(), d.tmp()} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
	}
	if out, err := try(ctx, append(i.wrapper(d, d.work(), false), "/bin/sh", "-c", "[ $$ = 1 ]")); err != nil {
		return fmt.Errorf("%s does not work here: %w: %s", i.Bwrap, err, bytes.TrimSpace(out))
	}
	return nil
}

// try runs a command that ends at once, or else with ctx. bwrap's inner process
// waits for its outer one before all else: if that is killed alone, it waits for
// ever, and holds the output.
func try(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + defaultPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// wrapper is the command line that runs the rest of it isolated: in the
// directory dir of a host. It is empty in plain mode.
//
// The inner shell is the init of the PID namespace, so that its end is the end
// of everything in it.
func (i Isolation) wrapper(h hostDir, dir string, network bool) []string {
	if i.Mode != Bwrap {
		return nil
	}
	argv := []string{i.Bwrap,
		"--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--new-session", "--cap-drop", "ALL",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
		"--bind", h.tmp(), "/tmp",
	}
	if !network {
		argv = append(argv, "--unshare-net")
	}
	for _, path := range i.hide {
		switch info, err := os.Stat(path); {
		case err != nil:
		case info.IsDir():
			argv = append(argv, "--tmpfs", path)
		default:
			argv = append(argv, "--ro-bind", "/dev/null", path)
		}
	}
	// Name resolution is configured in /run on some machines.
	if conf, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && conf != "/etc/resolv.conf" && network {
		argv = append(argv, "--ro-bind", conf, conf)
	}
	return append(argv,
		"--tmpfs", i.root, "--bind", h.work(), h.work(), "--bind", h.home(), h.home(), "--remount-ro", i.root,
		"--chdir", dir, "--")
}

func lookPath(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && filepath.IsAbs(file) && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", errors.New(name + " is not installed")
}
