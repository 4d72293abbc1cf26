package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// removeLimit is for processes that are dead and not gone yet.
const removeLimit = 5 * time.Second

// Remove removes the group with its subgroups. It must have no processes. What
// is not there is removed already.
func (g Group) Remove() error {
	var failed error
	for _, t := range g.Trees {
		failed = errors.Join(failed, removeTree(g.dir(t), time.Now().Add(removeLimit)))
	}
	return failed
}

func removeTree(dir string, deadline time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name()), deadline); err != nil {
				return err
			}
		}
	}
	for {
		err := rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// rmdir removes a directory whose files are the kernel's.
func rmdir(dir string) error {
	for {
		if err := syscall.Rmdir(dir); err != syscall.EINTR {
			return err
		}
	}
}
