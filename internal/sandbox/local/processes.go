package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/sandbox"
	"executor/internal/sandbox/local/cgroup"
)

// killLimit is how long processes may take to die of SIGKILL: longer takes only
// what hangs in the kernel.
const killLimit = 10 * time.Second

// process is one process of the machine at one moment.
type process struct {
	pid, parent, session int
	start                uint64 // with pid, its identity until the next boot
	dead                 bool   // a zombie
	supervisor           bool   // not of the command: supervisor, wrapper, inner shell
	executing            bool   // in execve: its environment cannot be read yet
	kernel               bool   // a thread of the kernel
}

// hunt finds the live processes of everything that a mark covers: a launch by
// its run directory, a host by its directory. These are the processes that
// carry the mark in their environment, those in the cgroup, whatever is in a session of theirs, and
// what descends from either, which is all of a PID namespace. What one look has
// found is known to the next, when the parent that led to it may be dead.
type hunt struct {
	mark     string
	group    *cgroup.Group  // nil: there is none
	members  map[int]uint64 // pid to start
	sessions map[int]bool
}

func newHunt(mark string, group *cgroup.Group) *hunt {
	return &hunt{mark: mark, group: group, members: map[int]uint64{}, sessions: map[int]bool{}}
}

func (h *hunt) look() ([]process, error) {
	rest, err := processes()
	if err != nil {
		return nil, err
	}
	// After the list: so a pid that was taken again in between is another
	// process's than the one that gets the signal, which goes by its start.
	var grouped map[int]bool
	if h.group != nil {
		if grouped, err = h.group.PIDs(); err != nil {
			return nil, fault("list the processes of a cgroup", err)
		}
	}
	alive := map[int]bool{}
	var found []process
	collect := func(belongs func(process) bool) (grown bool) {
		rest = slices.DeleteFunc(rest, func(p process) bool {
			if p.pid == os.Getpid() || p.pid == 1 || !belongs(p) {
				return false
			}
			h.members[p.pid], h.sessions[p.session], alive[p.pid] = p.start, true, true
			found = append(found, p)
			grown = true
			return true
		})
		return grown
	}
	collect(func(p process) bool { return grouped[p.pid] || p.marked(h.mark) || h.members[p.pid] == p.start })
	for collect(func(p process) bool { return alive[p.parent] || h.sessions[p.session] }) {
	}
	for i := range found {
		found[i].classify()
	}
	return found, nil
}

// spared reports whether a signal for the command is not for p, or may not be.
func (p process) spared() bool { return p.supervisor || p.executing }

// end kills what it finds until it sees twice that nothing is left: one look is
// not atomic, and what forks fast may pass behind it. A cgroup is closed to it
// before.
func (h *hunt) end(ctx context.Context) error {
	if h.group != nil {
		if err := h.group.Seal(); err != nil {
			return fault("close a cgroup", err)
		}
	}
	deadline := time.Now().Add(killLimit)
	for clean, pause := 0, time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		left, err := h.look()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			if clean++; clean == 2 {
				return nil
			}
			continue
		}
		clean = 0
		if err := signal(left, unix.SIGKILL); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return outlived(len(left))
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func signal(processes []process, sig syscall.Signal) error {
	for _, p := range processes {
		if err := p.signal(sig); err != nil {
			return fault(fmt.Sprintf("send %s to process %d", unix.SignalName(sig), p.pid), err)
		}
	}
	return nil
}

// signal sends sig to the very process that was seen, or to none.
func (p process) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
		if now, ok := readProcess(p.pid); !ok || now.start != p.start {
			return nil
		}
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// processes lists what lives on the machine.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fault("list processes", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fault("list processes", err)
	}
	var all []process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok && !p.dead && !p.kernel {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readProcess reads /proc/<pid>/stat, proc_pid_stat(5). The name in it is in
// parentheses and may hold anything.
func readProcess(pid int) (process, bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 20 {
		return process{}, false
	}
	const kernelThread = 0x200000 // PF_KTHREAD
	flags, _ := strconv.ParseUint(fields[6], 10, 64)
	p := process{pid: pid, dead: fields[0] == "Z" || fields[0] == "X", kernel: flags&kernelThread != 0}
	p.parent, _ = strconv.Atoi(fields[1])
	p.session, _ = strconv.Atoi(fields[3])
	p.start, _ = strconv.ParseUint(fields[19], 10, 64)
	return p, true
}

// environment is the environment that a process was started with.
type environment []byte

// environ is nil while the process is in execve: then it has no arguments
// either.
func environ(pid int) environment {
	read := func(name string) []byte {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		return content
	}
	env := read("environ")
	if len(env) == 0 {
		if len(read("cmdline")) == 0 {
			return nil
		}
		env = read("environ")
	}
	return append([]byte{0}, env...)
}

func (p process) marked(mark string) bool { return environ(p.pid).under(mark) }

func (p *process) classify() {
	env := environ(p.pid)
	p.supervisor, p.executing = env.has(sandbox.MarkSupervisor), env == nil
}

func (e environment) has(name string) bool {
	return bytes.Contains(e, []byte("\x00"+name+"="))
}

// under reports whether the launch mark is mark or something below it.
func (e environment) under(mark string) bool {
	at := []byte("\x00" + sandbox.MarkLaunch + "=" + mark)
	i := bytes.Index(e, at)
	if i < 0 {
		return false
	}
	rest := e[i+len(at):]
	return len(rest) == 0 || rest[0] == 0 || rest[0] == '/'
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
