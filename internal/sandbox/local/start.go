package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

const runLock = "lock"

// Start implements sandbox.Conn. Whoever holds the lock and sees no pid starts
// the supervisor, which inherits the lock; whoever sees pid adopts.
func (c *conn) Start(ctx context.Context, launch sandbox.Launch, cmd sandbox.Command) (sandbox.Process, error) {
	const op = "start process"
	dir := c.dir.run(launch.Name())
	// First, because a process may have removed its own working directory.
	if at, err := startedAt(dir); err == nil {
		return sandbox.Process{StartedAt: at, Adopted: true}, nil
	}
	sub := c.subgroup(launch.Name())
	ready, err := c.prepare(cmd, dir, sub)
	if err != nil {
		return sandbox.Process{}, notStarted(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return sandbox.Process{}, notStarted(c.orGone(fault(op, err)))
	}
	lock, err := os.OpenFile(filepath.Join(dir, runLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return sandbox.Process{}, notStarted(c.orGone(fault(op, err)))
	}
	defer lock.Close()
	for {
		// In this order: what is seen without the lock may be about to start.
		locked, err := tryLock(lock, unix.LOCK_EX)
		if err != nil {
			return sandbox.Process{}, fault(op, err)
		}
		if at, err := startedAt(dir); err == nil {
			return sandbox.Process{StartedAt: at, Adopted: true}, nil
		}
		if locked {
			break
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return sandbox.Process{}, err
		}
	}
	if ctx.Err() != nil {
		return sandbox.Process{}, context.Cause(ctx)
	}
	if err := layOut(dir, cmd.Stdin); err != nil {
		return sandbox.Process{}, notStarted(c.orGone(fault(op, err)))
	}
	if err := c.confine(sub); err != nil {
		return sandbox.Process{}, notStarted(err)
	}
	at := time.Now()
	argv := sandbox.SuperviseArgv(c.provider.shell, ready.wrapper, dir, cmd.Argv)
	supervisor := exec.Cmd{
		Path: argv[0], Args: argv, Env: ready.env, Dir: ready.dir,
		ExtraFiles:  []*os.File{lock}, // descriptor 3 of the supervisor alone
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := supervisor.Start(); err != nil {
		return sandbox.Process{}, c.orGone(execFault(op, err))
	}
	go func() { _ = supervisor.Wait() }() // no zombie while we live
	return sandbox.Process{StartedAt: at}, nil
}

// layOut makes the files that the supervisor expects. It may find those of a
// start that died before it. A disk too small for them is not left full.
func layOut(dir string, stdin []byte) error {
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{sandbox.RunStdin, stdin}, // first: it may be the one that fills the disk
		{sandbox.RunStdout, nil},
		{sandbox.RunStderr, nil},
		{sandbox.RunPIDNew, sandbox.Reserve},
		{sandbox.RunStatus, sandbox.Reserve},
		{runGiven, givenNothing},
	} {
		if err := os.WriteFile(filepath.Join(dir, file.name), file.content, 0o600); err != nil {
			return errors.Join(err, os.Remove(filepath.Join(dir, sandbox.RunStdin)))
		}
	}
	return nil
}

// startedAt is when the supervisor in dir wrote its pid.
func startedAt(dir string) (time.Time, error) {
	info, err := os.Stat(filepath.Join(dir, sandbox.RunPID))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// tryLock takes a lock if it is free. Closing the file gives it back, unless a
// supervisor inherited it.
func tryLock(f *os.File, how int) (bool, error) {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// notStarted says of err's fault that nothing was started.
func notStarted(err error) error {
	var f *faults.Fault
	if errors.As(err, &f) {
		f.Outcome = faults.NotStarted
	}
	return err
}
