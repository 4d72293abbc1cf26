package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local/cgroup"
)

// Limits are those of each host, for all its processes together; 0: none.
//
// There is none for disk space: a directory has no size of its own, quotas of
// projects need a file system that was made for them, and a file system of
// limited size would not outlive the processes that it is mounted for.
type Limits = cgroup.Limits

const defaultCgroupParent = "executor"

// limiter makes the cgroups of hosts, one each. It is nil where no limit is
// configured: then nothing is asked of the machine.
type limiter struct {
	machine cgroup.Machine
	parent  string
	limits  Limits
}

// newLimiter finds out, by trying, whether the machine allows the limits.
func newLimiter(ctx context.Context, cfg Config, shell []string) (*limiter, error) {
	if cfg.Limits == (Limits{}) {
		return nil, nil
	}
	if err := cfg.Limits.Valid(); err != nil {
		return nil, faults.New(faults.SandboxInvalid, "read the configured limits", err)
	}
	machine, err := cgroup.ThisMachine()
	if err != nil {
		return nil, unsupported(cfg.Limits, err)
	}
	l := &limiter{machine: machine, parent: cfg.CgroupParent, limits: cfg.Limits}
	if l.parent == "" {
		l.parent = defaultCgroupParent
	}
	if err := l.probe(ctx, shell); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, unsupported(cfg.Limits, err)
	}
	return l, nil
}

func unsupported(limits Limits, err error) error {
	return faults.New(faults.SandboxUnsupported, "try cgroups", fmt.Errorf("the configured limits %+v cannot be applied here: %w", limits, err))
}

// probe runs a command in a group with everything that a host's has.
func (l *limiter) probe(ctx context.Context, shell []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	group, err := l.group("probe-" + rand.Text())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	sub := group.Sub("true")
	if err := errors.Join(group.Make(), sub.Make()); err != nil {
		return err
	}
	if out, err := try(ctx, append(sub.Wrapper(shell), shell[0], "-c", ":")); err != nil {
		return fmt.Errorf("run a command in %s: %w: %s", group.Path, err, bytes.TrimSpace(out))
	}
	return nil
}

// group is the group of a host that is being created. From then on host.json
// says which it is, and what its limits are.
func (l *limiter) group(id string) (*cgroup.Group, error) {
	if l == nil {
		return nil, nil
	}
	group, err := cgroup.New(l.machine, filepath.Join(l.parent, id), l.limits)
	return &group, err
}

// subgroup is the group of one launch, or one attached command, of the host.
// Nil stands for the processes of a host without limits.
func (c *conn) subgroup(name string) *cgroup.Group {
	if c.group == nil {
		return nil
	}
	sub := c.group.Sub(name)
	return &sub
}

// confine makes the groups that a process is about to enter: after a reboot
// even the host's own is gone. A deletion of the host that has begun before
// does not see them.
func (c *conn) confine(sub *cgroup.Group) error {
	if sub == nil {
		return nil
	}
	if err := errors.Join(c.group.Make(), sub.Make()); err != nil {
		return c.orGone(classify("make the process's cgroup", err, byErrnoOfGroup))
	}
	if err := c.present(); err != nil {
		return errors.Join(err, c.group.Remove())
	}
	return nil
}

// dissolve removes the group of an attached command that has ended. What fails
// goes with the host.
func (c *conn) dissolve(sub *cgroup.Group) {
	if sub == nil {
		return
	}
	if err := sub.Remove(); err != nil {
		c.provider.log.Warn().Err(err).Str("cgroup", sub.Path).Msg("a cgroup stays until its host is deleted")
	}
}

// byErrnoOfGroup is what differs when the call was for a cgroup.
var byErrnoOfGroup = map[syscall.Errno]*faults.Kind{
	syscall.ENOSPC: faults.SandboxCapacity, // no more groups, which is no matter of disks
	syscall.EAGAIN: faults.SandboxCapacity,
	syscall.ENOMEM: faults.SandboxCapacity,

	syscall.ENOENT:     faults.SandboxUnsupported, // unmounted, or no more handed down
	syscall.EACCES:     faults.SandboxUnsupported,
	syscall.EPERM:      faults.SandboxUnsupported,
	syscall.EROFS:      faults.SandboxUnsupported,
	syscall.EBUSY:      faults.SandboxUnsupported,
	syscall.EINVAL:     faults.SandboxUnsupported,
	syscall.EOPNOTSUPP: faults.SandboxUnsupported,
}

const killed = 128 + int(syscall.SIGKILL)

// outOfMemory is the fault of a command that SIGKILL ended, or that says so of
// its own child, where the kernel killed a process of its group for memory:
// neither alone proves it. A command that survives such a death is no fault.
func outOfMemory(op string, exit sandbox.Exit, group *cgroup.Group) error {
	if group == nil || exit.Code != killed {
		return nil
	}
	n, err := group.OOMKills()
	if err != nil || n == 0 {
		return nil // not proved
	}
	return faults.New(faults.SandboxOOM, op,
		fmt.Errorf("exit status %d, and the kernel killed %d of its processes for want of memory", exit.Code, n)).
		With(func(f *faults.Fault) { f.Outcome = faults.Done })
}
