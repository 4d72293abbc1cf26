package local

import (
	"errors"
	"syscall"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// byErrno is what a system call's error means for a host.
//
// ENOSPC is the host's disk being full where it was our own call that met it:
// an upload, or a run directory. Of a step that fails on a full disk its
// supervisor knows that it was; see sandbox.End.
var byErrno = map[syscall.Errno]*faults.Kind{
	syscall.EAGAIN: faults.SandboxCapacity, // no more processes
	syscall.ENOMEM: faults.SandboxCapacity,
	syscall.EMFILE: faults.SandboxCapacity,
	syscall.ENFILE: faults.SandboxCapacity,

	syscall.ENOSPC: faults.SandboxDiskFull,
	syscall.EDQUOT: faults.SandboxDiskFull,

	syscall.EROFS:  faults.SandboxDenied,
	syscall.EACCES: faults.SandboxDenied,
	syscall.EPERM:  faults.SandboxDenied,

	syscall.EINVAL:       faults.SandboxInvalid,
	syscall.E2BIG:        faults.SandboxInvalid,
	syscall.ENOTDIR:      faults.SandboxInvalid,
	syscall.EISDIR:       faults.SandboxInvalid,
	syscall.ELOOP:        faults.SandboxInvalid,
	syscall.ENAMETOOLONG: faults.SandboxInvalid,
	syscall.EEXIST:       faults.SandboxInvalid, // a directory where a file should be
	syscall.ENOTEMPTY:    faults.SandboxInvalid,

	syscall.ENOENT: faults.SandboxNotFound, // what is missing is a part of the host
}

// byErrnoOfExec is what differs when the call was to run a program.
var byErrnoOfExec = map[syscall.Errno]*faults.Kind{
	syscall.ENOENT:  faults.SandboxInvalid,
	syscall.EACCES:  faults.SandboxInvalid,
	syscall.ENOEXEC: faults.SandboxInvalid,
}

// fault gives err a kind. What has one keeps it, and an error that nobody
// foresaw stays what it is: internal.
func fault(op string, err error) error { return classify(op, err, byErrno) }

// execFault is fault for starting a program. It certainly did not start.
func execFault(op string, err error) error {
	classified := classify(op, err, byErrnoOfExec, byErrno)
	var f *faults.Fault
	if errors.As(classified, &f) {
		f.Outcome = faults.NotStarted
	}
	return classified
}

func classify(op string, err error, tables ...map[syscall.Errno]*faults.Kind) error {
	var errno syscall.Errno
	if err == nil || faults.Classified(err) || !errors.As(err, &errno) {
		return err
	}
	for _, table := range tables {
		if kind := table[errno]; kind != nil {
			return faults.New(kind, op, err)
		}
	}
	return err
}

// unseen makes what ParseEnd says a fault, and leaves any other error alone.
func unseen(op string, err error) error {
	switch {
	case errors.Is(err, sandbox.ErrNotBegun):
		return notStarted(faults.New(faults.SandboxLost, op, err))
	case errors.Is(err, sandbox.ErrNoEnd):
		return faults.New(faults.SandboxLost, op, err)
	}
	return err
}

func lost(cause error) error {
	return faults.New(faults.SandboxLost, "follow process", cause)
}
