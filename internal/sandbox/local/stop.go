package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/sandbox"
)

const (
	// Once the command is killed its supervisor records the end and goes. When
	// something is left after these, the init of a PID namespace is killed, and
	// then everything.
	initGrace       = 200 * time.Millisecond
	supervisorGrace = 2 * time.Second
)

// Stop implements sandbox.Conn.
func (c *conn) Stop(ctx context.Context, launch sandbox.Launch, grace time.Duration) error {
	dir := c.dir.run(launch.Name())
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	hunt := newHunt(dir, c.subgroup(launch.Name()))
	if grace > 0 {
		if err := hunt.terminate(ctx, grace); err != nil {
			return err
		}
	}
	if err := hunt.kill(ctx); err != nil {
		return err
	}
	return hunt.end(ctx)
}

// terminate asks every process of the command to end, once, and gives them the
// grace. What they start in answer is left alone until the command has ended.
func (h *hunt) terminate(ctx context.Context, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	asked := false
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		left, err := h.look()
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(h.mark, sandbox.RunExit)); err == nil || len(left) == 0 {
			return nil
		}
		settled := !slices.ContainsFunc(left, func(p process) bool { return p.executing })
		command := slices.DeleteFunc(left, process.spared)
		if !asked && settled && len(command) > 0 {
			asked = true
			// A stopped process takes the one when it gets the other.
			if err := errors.Join(signal(command, unix.SIGTERM), signal(command, unix.SIGCONT)); err != nil {
				return err
			}
			pause = time.Millisecond
		}
		if err := sleep(ctx, min(pause, time.Until(deadline))); err != nil {
			return err
		}
	}
	return nil
}

// kill ends the command first, so that its supervisor can record the end. What
// is left then is for end.
func (h *hunt) kill(ctx context.Context) error {
	began := time.Now()
	supervisor := supervisorOf(h.mark)
	for pause := time.Millisecond; time.Since(began) < supervisorGrace; pause = min(2*pause, 20*time.Millisecond) {
		left, err := h.look()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		initToo := time.Since(began) > initGrace
		left = slices.DeleteFunc(left, func(p process) bool {
			// The supervisor's own children are the wrapper, and what it
			// records the end with.
			return p.spared() && (p.pid == supervisor || p.parent == supervisor || !initToo)
		})
		if err := signal(left, unix.SIGKILL); err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// supervisorOf is the pid in a run directory, 0 if there is none. It is only
// compared with pids of processes that carry the launch's mark.
func supervisorOf(dir string) (pid int) {
	content, _ := os.ReadFile(filepath.Join(dir, sandbox.RunPID))
	_, _ = fmt.Sscan(string(content), &pid)
	return pid
}
