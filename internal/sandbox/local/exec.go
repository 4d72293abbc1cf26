package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"executor/internal/sandbox"
)

// tries is how often a wrapper may fail before the command begins; see
// supervise.sh.
const tries = 3

// Exec implements sandbox.Conn. The command's tree ends with it, or with ctx,
// and only then its output: so a background child cannot hold us up, and
// nothing that was written is lost.
func (c *conn) Exec(ctx context.Context, cmd sandbox.Command, stdio sandbox.Stdio) (sandbox.Exit, error) {
	const op = "run command"
	if ctx.Err() != nil {
		return sandbox.Exit{}, context.Cause(ctx)
	}
	name := rand.Text() // of no launch: those have a '+'
	tree := newHunt(c.dir.exec(name), c.subgroup(name))
	ready, err := c.prepare(cmd, tree.mark, tree.group)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if err := c.confine(tree.group); err != nil {
		return sandbox.Exit{}, notStarted(err)
	}
	defer c.dissolve(tree.group)
	pipes, err := newPipes(stdio)
	if err != nil {
		return sandbox.Exit{}, execFault(op, err)
	}
	defer pipes.close()
	copied, fed := pipes.copy()
	var end sandbox.End
	for range tries {
		end, err = c.attached(ctx, cmd.Argv, ready, pipes, tree)
		if !errors.Is(err, sandbox.ErrNotBegun) {
			break
		}
	}
	if ctx.Err() != nil {
		return sandbox.Exit{}, errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return sandbox.Exit{}, c.orGone(unseen(op, err))
	}
	oom := outOfMemory(op, end.Exit, tree.group)
	pipes.closeTheirs() // which ends the copies
	select {
	case err = <-copied:
	case err = <-fed:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil && oom != nil {
		return sandbox.Exit{}, oom
	}
	return end.Exit, err
}

// attached runs a command to the end of its tree, or of ctx.
func (c *conn) attached(ctx context.Context, command []string, ready prepared, pipes *pipes, tree *hunt) (sandbox.End, error) {
	const op = "run command"
	report, err := newReport()
	if err != nil {
		return sandbox.End{}, execFault(op, err)
	}
	defer report.Close()
	argv := sandbox.CommandArgv(c.provider.shell, ready.wrapper, command)
	run := exec.Cmd{
		Path: argv[0], Args: argv, Env: ready.env, Dir: ready.dir,
		Stdin: pipes.in, Stdout: pipes.out, Stderr: report,
		ExtraFiles:  []*os.File{pipes.err}, // descriptor 3
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := run.Start(); err != nil {
		return sandbox.End{}, execFault(op, err)
	}
	ended := make(chan struct{})
	go func() { _ = run.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		return sandbox.End{}, tree.end(context.WithoutCancel(ctx))
	}
	content, err := io.ReadAll(io.NewSectionReader(report, 0, 1<<20))
	if err != nil {
		return sandbox.End{}, fault(op, err)
	}
	end, noEnd := sandbox.ParseEnd(fmt.Appendf(content, "\nsupervised: %d\n", shellStatus(run.ProcessState)))
	if !end.Alone {
		if err := tree.end(context.WithoutCancel(ctx)); err != nil {
			return sandbox.End{}, err
		}
	}
	return end, noEnd
}

// newReport is a file without a name: unlike a pipe it has no end to wait for.
func newReport() (*os.File, error) {
	fd, err := unix.MemfdCreate("report", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "report"), nil
}

// shellStatus is a status as a shell would give it.
func shellStatus(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
