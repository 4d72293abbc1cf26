package local

import (
	"errors"
	"syscall"

	"executor/internal/faults"
)

// byErrno is what a system call's error means for a host.
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
