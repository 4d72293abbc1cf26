// Package sandbox gives a run a place to execute in.
//
// A provider makes hosts (directories, containers, VMs). Client holds what is
// common to all of them: idempotent acquisition against the ledger, roll-back
// of a fresh host that cannot be used, release, and one seam that asks about
// our own context before a provider's error is believed. A Sandbox is an open
// connection to a host.
//
// The package must not know runs, Postgres or River. It names the small
// interface it needs of them, Ledger.
//
// # Detached processes
//
// A step's process outlives every connection to its host, and the executor
// itself. It is named by its Launch and lives in a run directory of the host:
//
//	Start ──► mkdir <launch>          the guard: a second Start finds it and adopts
//	          supervisor (own session) ──► command, stdin/stdout/stderr are files
//	          pid      identity: pid, start time, boot id; by rename
//	          exit     how the command ended; by rename, the last thing written
//	Follow ─► bytes of stdout and stderr from any offset, until exit is there,
//	          the rest of the tree is ended and every byte is read
//	Stop ───► TERM to the tree, a grace, KILL, and a look that nothing is left
//
// A process that is gone without exit is faults.SandboxLost, never success. One
// that failed by itself on a full disk is faults.SandboxDiskFull. A
// run directory with neither a live supervisor nor pid is a lost launch whose
// outcome is unknown.
package sandbox

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"time"
)

// Key is the idempotency key of one logical host: the same for every attempt,
// so that an ambiguous create finds its own host again.
type Key string

var nameRE = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// ValidName reports whether s may name a step or a member: 1 to 64 of
// letters, digits, '_', '.' and '-'.
func ValidName(s string) bool { return nameRE.MatchString(s) }

// StepKey is the key of a step's own host.
func StepKey(runID, step string) Key { return Key(runID + ":" + step) }

// MemberKey is the key of the host of one member of a composite step.
func MemberKey(runID, step, member string) Key { return Key(runID + ":" + step + ":" + member) }

// KeptKey is the key of the host that a run keeps across its steps. No step
// may be named "sandbox" where it is used.
func KeptKey(runID string) Key { return Key(runID + ":sandbox") }

// HostSpec is what is asked of a provider.
type HostSpec struct {
	Key     Key
	RunID   string
	Network bool // whether processes in the host may reach the network
}

// Host is one host at a provider.
type Host struct {
	ID        string // the provider's, never used twice; what Get, Delete and the ledger use
	Key       Key
	Provider  string
	Machine   string    // the only machine that can reach it; empty: any
	ExpiresAt time.Time // the end of its lease, by our clock: the provider takes it away then; zero: never
}

// Provider makes hosts. Every method may be called concurrently, honours its
// context promptly, may be repeated, and returns faults of the sandbox family.
type Provider interface {
	// Name is the word that specs, the ledger and labels use.
	Name() string
	// Create returns the live host of spec.Key, making it if there is none.
	// Concurrent calls with one key return the same host.
	Create(ctx context.Context, spec HostSpec) (Host, error)
	// Get looks a host up. A host that is gone is faults.SandboxNotFound.
	Get(ctx context.Context, id string) (Host, error)
	// Delete ends every process of the host and removes it. A host that is
	// not there is deleted already: nil.
	Delete(ctx context.Context, id string) error
	// List returns every host of this installation, in whatever state.
	List(ctx context.Context) ([]Host, error)
	// Dial opens a connection to a host. It starts nothing in it.
	Dial(ctx context.Context, host Host) (Conn, error)
}

// KeyRemover is a Provider that keeps key material for its hosts outside
// them. Removing what is not there is no error.
type KeyRemover interface {
	RemoveKey(ctx context.Context, host Host) error
}

// Renewer is a Provider that can put off the end of a host's lease.
type Renewer interface {
	// Renew moves the end of the lease to until, or to the end of a usual
	// lease that begins now where that is later; to less where the provider
	// allows no more, which is no error. It shortens nothing. The host that it
	// returns has the end that was got. A host that is gone, or whose lease is
	// over, is faults.SandboxNotFound.
	Renew(ctx context.Context, host Host, until time.Time) (Host, error)
}

// Marker is a Provider that marks its hosts as this installation's: what its
// List returns is certainly ours, and may be deleted when the ledger does not
// know it. Of any other provider an unknown host is never touched.
type Marker interface {
	MarksHosts()
}

// Conn is an open connection to one host. Methods may be called concurrently.
// Closing it ends nothing that runs in the host.
type Conn interface {
	// Prepare installs what the host needs before its first process. It may
	// be repeated.
	Prepare(ctx context.Context) error
	// Exec runs a short command to its end. The tree of a command is ended
	// when ctx is. A nil reader or writer is an empty one.
	Exec(ctx context.Context, cmd Command, stdio Stdio) (Exit, error)
	// Upload writes a file below the working directory of the host, with its
	// parents: whole under its final name, or not at all. A path that leaves
	// the working directory is faults.SandboxInvalid.
	Upload(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error
	// Download opens a file below the working directory. A missing file is an
	// error that wraps fs.ErrNotExist; it is not a fault of the sandbox.
	Download(ctx context.Context, path string) (io.ReadCloser, error)

	// Start starts a detached process, or adopts the one that an earlier
	// Start of the same launch made. An error's Outcome says whether it may
	// have been started all the same.
	Start(ctx context.Context, launch Launch, cmd Command) (Process, error)
	// Follow hands the output from the offsets on to sink, each stream's
	// bytes in order and without gap, and returns how the process ended once
	// it has ended and every byte was handed over. An error of sink ends it
	// and is returned unchanged.
	Follow(ctx context.Context, launch Launch, from Offsets, sink Sink) (Exit, error)
	// Stop ends the whole tree of the launch: TERM, KILL after the grace, and
	// a look that nothing is left. A launch that never started, or has ended,
	// is stopped already. A following Follow ends soon after.
	Stop(ctx context.Context, launch Launch, grace time.Duration) error

	Close() error
}

// Command is a program to run in a host. The environment is exactly Env plus
// the provider's own minimum (PATH, HOME, TMPDIR, LANG, where Env has none);
// nothing of the executor's leaks in.
type Command struct {
	Argv  []string
	Env   map[string]string
	Dir   string // below the working directory; empty: the directory itself
	Stdin []byte // of a detached process
}

// Stdio is the standard streams of an attached command.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Launch names one start of a process. N begins at 1 and grows only after
// launch N-1 was seen to end or its host was deleted.
type Launch struct {
	RunID  string
	Step   string
	Member string // of a composite step; else empty
	N      int
}

// Name is the launch's name inside its host. Members and steps cannot hold a
// '+', so that it is unambiguous.
func (l Launch) Name() string {
	if l.Member == "" {
		return fmt.Sprintf("%s+%d", l.Step, l.N)
	}
	return fmt.Sprintf("%s+%s+%d", l.Step, l.Member, l.N)
}

// Process is a detached process that was started.
type Process struct {
	StartedAt time.Time // by the host's clock
	Adopted   bool      // an earlier Start had made it
}

// Exit is how a process ended, as its supervisor read it.
type Exit struct {
	Code   int    // its exit status; 128+n where signal n ended it
	Signal string // such as "SIGKILL"; empty: it exited by itself
}

// Success reports whether the process exited by itself with status 0.
func (e Exit) Success() bool { return e.Code == 0 && e.Signal == "" }

// Stream names one of a process's output streams.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Offsets are byte positions in a process's output.
type Offsets struct{ Stdout, Stderr int64 }

// Sink takes output bytes. data is valid until it returns. Blocking it holds
// the reader back; the process writes to a file and does not notice.
type Sink func(stream Stream, offset int64, data []byte) error
