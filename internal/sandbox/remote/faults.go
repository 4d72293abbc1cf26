package remote

import (
	"errors"
	"fmt"
	"strconv"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// expect returns nil if the answer is word, and else what it means.
func (a answer) expect(op, word string) error {
	if a.word == word {
		return nil
	}
	return a.fault(op)
}

// fault is the one table of what the words of remote.sh mean. The words that
// belong to one operation are that operation's to look at.
func (a answer) fault(op string) error {
	var kind *faults.Kind
	outcome := faults.NotStarted
	switch a.word {
	case "invalid":
		kind = faults.SandboxInvalid
	case "denied":
		kind = faults.SandboxDenied
	case "unprepared":
		kind = faults.SandboxNotFound // what we keep in it is gone
	case "cut":
		kind = faults.SandboxUnavailable // our own input did not arrive whole
	case "failed":
		kind = a.failure()
	case "outlived":
		kind, outcome = faults.SandboxTimeout, faults.Unknown
	default: // none, lost, stopped, and what no version of ours says
		kind, outcome = faults.SandboxLost, faults.Unknown
	}
	err := faults.New(kind, op, errors.New(a.text()))
	err.Outcome = outcome
	return err
}

// failure tells a full disk from whatever else a write can fail of: only who
// has no room is out of it. The arguments are what failed, free blocks, their
// size, free inodes, all inodes, and what became of a little that was written:
// the numbers know nothing of quotas.
func (a answer) failure() *faults.Kind {
	if len(a.args) > 0 && a.args[len(a.args)-1] == "full" {
		return faults.SandboxDiskFull
	}
	if len(a.args) < 5 {
		return faults.SandboxDenied
	}
	blocks, _ := strconv.ParseFloat(a.args[1], 64)
	size, _ := strconv.ParseFloat(a.args[2], 64)
	inodes, _ := strconv.ParseFloat(a.args[3], 64)
	all, _ := strconv.ParseFloat(a.args[4], 64)
	if sandbox.NoRoom(blocks, size, inodes, all) {
		return faults.SandboxDiskFull
	}
	return faults.SandboxDenied
}

func (a answer) text() string {
	text := "the host says " + strconv.Quote(a.word)
	for _, arg := range a.args {
		text += " " + arg
	}
	if a.said != "" {
		text += ": " + a.said
	}
	return text
}

func invalid(format string, args ...any) error {
	return faults.Errorf(faults.SandboxInvalid, format, args...).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

func unseen(op string, err error) error {
	f := faults.New(faults.SandboxLost, op, err)
	if errors.Is(err, sandbox.ErrNotBegun) {
		f.Outcome = faults.NotStarted
	}
	return f
}

const killed = 137

// outOfMemory is the fault of a process that SIGKILL ended, or that says so of
// its own child, while the host's memory limit was killing: neither alone
// proves it.
func outOfMemory(op string, exit sandbox.Exit, before, after string) error {
	b, err1 := strconv.ParseUint(before, 10, 64)
	a, err2 := strconv.ParseUint(after, 10, 64)
	if err1 != nil || err2 != nil || a <= b || exit.Code != killed {
		return nil
	}
	return faults.New(faults.SandboxOOM, op,
		fmt.Errorf("exit status %d, and the memory limit killed %d processes meanwhile", exit.Code, a-b)).
		With(func(f *faults.Fault) { f.Outcome = faults.Done })
}
