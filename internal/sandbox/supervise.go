package sandbox

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"executor/internal/faults"
)

// superviseScript supervises a detached process. Any POSIX sh runs it.
//
//go:embed supervise.sh
var superviseScript string

// script is what goes on a command line, and so into the lists of processes
// that people read: without the comments.
var script = regexp.MustCompile(`(?m)^\s*(#.*)?\n`).ReplaceAllString(superviseScript, "")

// The files of a run directory. The launcher makes all of them but pid and
// exit, before it starts the supervisor.
const (
	RunStdin  = "stdin"   // the command's input
	RunStdout = "stdout"  // its output, appended to
	RunStderr = "stderr"  // its errors, appended to
	RunPIDNew = "pid.new" // holds Reserve; becomes pid
	RunPID    = "pid"     // the supervisor's pid, start time and boot id
	RunStatus = "status"  // holds Reserve; becomes exit
	RunExit   = "exit"    // how the command ended: see ParseEnd
)

// Reserve is what two files hold at first. It takes a block of the disk, and
// what is written later goes over it or behind it into the same block: so the
// end of a process can be recorded on a disk that it has filled.
var Reserve = bytes.Repeat([]byte("\n"), 128)

// Marks in the environment of a launch's processes. The supervisor is
// started with both.
const (
	// MarkLaunch is in every process of the launch; its value names the launch.
	MarkLaunch = "EXECUTOR_LAUNCH"
	// MarkSupervisor is in the supervisor and the wrapper only: what a
	// polite signal must spare.
	MarkSupervisor = "EXECUTOR_SUPERVISOR"
)

// SuperviseArgv is the command line of a supervisor: shell runs the script, and
// argv runs inside wrapper, the beginning of a command line or nothing.
func SuperviseArgv(shell, wrapper []string, runDir string, argv []string) []string {
	return slices.Concat(shell, []string{"-c", script, "sh", "supervise", runDir},
		CommandArgv(shell, wrapper, argv))
}

// CommandArgv is the command line of the inner shell alone. It runs argv with
// descriptor 3 as its stderr, and reports on its own for ParseEnd.
func CommandArgv(shell, wrapper, argv []string) []string {
	return slices.Concat(wrapper, shell, []string{"-c", script, "sh", "command"}, argv)
}

// End is how a supervised command ended.
type End struct {
	Exit
	// Alone: the inner shell was the init of a PID namespace, so that nothing
	// of the tree is left.
	Alone bool
	// Full: there was no room on the disk of the run directory when the command
	// had ended.
	Full bool
}

// lowDisk is how much room is none: who has no room writes less than it wants,
// and tidies up.
const lowDisk = 1 << 20

// NoRoom reports whether a disk is full, by its free blocks, their size, its free
// inodes and all of them: some file systems count none.
func NoRoom(blocks, size, inodes, all float64) bool {
	return blocks*size < lowDisk || all > 0 && inodes < 1
}

// DiskFull is the fault of a step that failed by itself on a disk that it found
// full, or filled; else nil. It alone knows why it failed, though the disk is why
// it may not fail elsewhere. One that succeeded has its success.
func (e End) DiskFull() error {
	if !e.Full || e.Success() || e.Signal != "" {
		return nil
	}
	return faults.New(faults.SandboxDiskFull, "follow process",
		fmt.Errorf("it exited with %d, and its disk is full", e.Code)).
		With(func(f *faults.Fault) { f.Outcome = faults.Done })
}

var (
	// ErrNotBegun says that the wrapper failed before it ran the command.
	ErrNotBegun = errors.New("the command was not begun")
	// ErrNoEnd says that the command ran and nobody saw it end.
	ErrNoEnd = errors.New("the command was not seen to end")
)

// ParseEnd reads the content of an exit file. Its lines are
//
//	begun                    by the inner shell
//	ended: <status> <pid>    by the inner shell
//	supervised: <status>     of the wrapper
//	room: <blocks> <size> <inodes> <all>
//
// Any other text is the wrapper's before begun, and after it a notice of the
// inner shell that the command died of a signal; only that there is one counts.
// Shells pass over SIGINT and SIGPIPE in silence, so that 130 and 141 are taken
// for these signals.
func ParseEnd(content []byte) (End, error) {
	var inner, wrapper, pid int
	var begun, ended, noticed, full bool
	var blocks, size, inodes, all float64
	var said []string
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case line == "begun":
			begun = true
		case scan(line, "ended: %d %d", &inner, &pid):
			ended = true
		case scan(line, "supervised: %d", &wrapper):
		case scan(line, "room: %g %g %g %g", &blocks, &size, &inodes, &all):
			full = NoRoom(blocks, size, inodes, all)
		case begun:
			noticed = true
		default:
			said = append(said, line)
		}
	}
	switch {
	case ended:
	case wrapper > 128:
		return End{Exit: Exit{Code: wrapper, Signal: signalName(wrapper - 128)}}, nil
	case begun:
		return End{}, fmt.Errorf("%w: its wrapper exited with %d", ErrNoEnd, wrapper)
	default:
		return End{}, fmt.Errorf("%w: its wrapper exited with %d: %s", ErrNotBegun, wrapper, strings.Join(said, "; "))
	}
	end := End{Exit: Exit{Code: inner}, Alone: pid == 1, Full: full}
	switch sig := syscall.Signal(inner - 128); {
	case noticed, sig == syscall.SIGINT, sig == syscall.SIGPIPE:
		end.Signal = signalName(int(sig))
	}
	return end, nil
}

func scan(line, format string, into ...any) bool {
	n, err := fmt.Sscanf(line, format, into...)
	return err == nil && n == len(into)
}

// signalName names the signals that have one or could be a real-time one;
// everything else is no signal.
func signalName(n int) string {
	if n < 1 || n > 64 {
		return ""
	}
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", n)
}

// ValidEnv reports whether name can pass through a shell: shells drop what is
// no name of theirs.
func ValidEnv(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0 && (name[0] < '0' || name[0] > '9')
}
