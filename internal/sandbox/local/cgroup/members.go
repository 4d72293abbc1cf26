package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// enter is run by a shell. What is written is the writer itself.
const enter = `while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done; shift; exec "$@"`

// Wrapper is the beginning of a command line; the rest of it runs in the group,
// and so does all that it starts.
func (g Group) Wrapper(shell []string) []string {
	argv := slices.Concat(shell, []string{"-c", enter, "sh"})
	for _, t := range g.Trees {
		argv = append(argv, filepath.Join(g.dir(t), "cgroup.procs"))
	}
	return append(argv, "--")
}

// PIDs are the processes in the group and its subgroups. A group that is not
// there has none.
func (g Group) PIDs() (map[int]bool, error) {
	all := map[int]bool{}
	err := filepath.WalkDir(g.dir(g.Trees[0]), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = members(path, all)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) { // removed meanwhile
			return nil
		}
		return err
	})
	return all, err
}

func members(dir string, into map[int]bool) error {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, field := range strings.Fields(string(content)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("%s/cgroup.procs: %w", dir, err)
		}
		if pid > 0 { // 0 is one of another PID namespace
			into[pid] = true
		}
	}
	return nil
}

// Seal lets no process of the group start another one, or kills all of them at
// once: whichever the kernel offers. Where it offers neither, or the group is
// not there, nothing happens.
func (g Group) Seal() error {
	for _, t := range g.Trees {
		file, value := "", ""
		switch {
		case t.V2:
			file, value = "cgroup.kill", "1" // since Linux 5.14
		case slices.Contains(t.Controllers, pids):
			file, value = "pids.max", "0"
		default:
			continue
		}
		if err := (setting{file, value, true}).write(g.dir(t)); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// OOMKills counts the processes of the group that the kernel killed for want of
// memory, within the group's limit, those above it, or the machine's. Without
// the memory controller it is 0. In version 1 those of subgroups do not count.
func (g Group) OOMKills() (int64, error) {
	for _, t := range g.Trees {
		if !slices.Contains(t.Controllers, memory) {
			continue
		}
		file := "memory.oom_control"
		if t.V2 {
			file = "memory.events"
		}
		content, err := os.ReadFile(filepath.Join(g.dir(t), file))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(content)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "oom_kill" {
				return strconv.ParseInt(fields[1], 10, 64)
			}
		}
	}
	return 0, nil
}
