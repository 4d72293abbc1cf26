// Package remote is a connection to a host that can do no more than run
// commands: a container behind an API, a machine behind SSH. It is written once,
// in sh, for all of them; a provider brings a Host and gets a sandbox.Conn:
//
//	type container struct{ … }                     // Run, Diagnose, Close
//	conn := remote.New(container, remote.Config{   // a sandbox.Conn
//	    Base: "/executor",     // or relative: below the directory commands begin in
//	    Work: "/work",         // optional, as are Home and Tmp
//	})
//
// Every operation is one Run of remote.sh. Nothing is installed in the host, so
// that nothing can be old or missing there, but Prepare makes these:
//
//	<base>/run/<launch>/    one detached process: see package sandbox
//	<base>/exec/<nonce>     a fence: this Exec was cancelled and may not begin
//	<base>/work  home  tmp  where Config names no other
//
// An operation says at the end of its stderr, behind a nonce that only this
// call knows, what became of it. Without this answer nothing is believed: not
// an end of stream, and not an exit status.
//
//	Exec      header ─► stdin ─► command ─► its tree is ended ─► answer
//	Start     header ─► stdin, into a file; mkdir is the guard ─► supervisor ─► pid
//	          ─► answer; then it goes on as the first follower, from 0
//	Follow    stdout and stderr are those of the process, from the offsets on;
//	          what may be given back of them goes over stdin; a connection
//	          that breaks is made again, and resumes
//	Upload    content and nonce ─► a temporary file ─► rename
//
// A tree is found by the marks in the environment of its processes, their
// sessions and descent. What a command runs with goes over stdin: a command line
// can be read by everybody in the host.
//
// The commands run as the user that Run runs as, so that a process can write
// its run directory and forge its end. Hosts here hold one run.
//
// The package imports sandbox and faults. It knows no provider.
package remote

import (
	"context"
	_ "embed"
	"regexp"
	"time"

	"executor/internal/sandbox"
)

// Host is what a provider brings: a way to one host. Methods may be called
// concurrently.
type Host interface {
	// Run runs a command, in no particular environment and directory, though
	// always the same, and with the host's own PATH. It returns the command's
	// exit status once it has ended and its output was handed on; a Read of
	// stdio.In may be under way still. The end of stdio.In, or an error of it, is
	// the end of the command's input. When ctx is done Run returns promptly, the
	// command's input ends, and the command is otherwise left alone.
	//
	// Its errors are those of a Write, unchanged, and faults: SandboxUnavailable
	// when the way to the host broke, SandboxLost when the status cannot be
	// read, SandboxNotFound when the host is gone.
	Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (status int, err error)
	// Diagnose is asked when a command broke off, and says why as a fault: the
	// host is gone, was out of memory or processes, does not answer. nil: the
	// host is well.
	Diagnose(ctx context.Context) error
	// Close closes the way.
	Close() error
}

// Config of a connection.
type Config struct {
	Shell string // path of a POSIX sh in the host; empty: /bin/sh
	Base  string // directory in the host for what we keep there
	Work  string // working directory; empty: below Base. So are
	Home  string
	Tmp   string

	// Patience is for how long Follow tries to reach a host after it answered
	// last; 0: five minutes.
	Patience time.Duration
	// Retry is the first pause of its attempts, which double up to 30 s; 0: 1 s.
	Retry time.Duration

	// OutputCeiling is how many bytes of a stream's output may lie on the
	// host's disk before its process is stopped; 0: 1 GiB. Below 80 MiB, or
	// where the file system has no holes, or the host no fallocate of
	// util-linux, it limits all that a process prints. See sandbox's ceiling.go.
	OutputCeiling int64
}

// Conn is a connection to a host.
type Conn struct {
	host Host
	cfg  Config

	standbys standbys
}

var _ sandbox.Conn = (*Conn)(nil)

//go:embed remote.sh
var remoteScript string

// script is what goes on a command line: without the comments.
var script = regexp.MustCompile(`(?m)^\s*(#.*)?\n`).ReplaceAllString(remoteScript, "")

// New returns a connection to host. It does nothing yet.
func New(host Host, cfg Config) *Conn {
	if cfg.Shell == "" {
		cfg.Shell = "/bin/sh"
	}
	if cfg.Patience == 0 {
		cfg.Patience = 5 * time.Minute
	}
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	if cfg.OutputCeiling <= 0 {
		cfg.OutputCeiling = sandbox.DefaultOutputCeiling
	}
	return &Conn{host: host, cfg: cfg}
}

// Prepare implements sandbox.Conn: it makes the directories, as the user that
// commands run as. A provider whose hosts come with them need not ask for it:
// every operation waits some seconds for <base>/run.
func (c *Conn) Prepare(ctx context.Context) error {
	const op = "prepare host"
	answer, err := c.call(ctx, "prepare", nil, sandbox.Stdio{})
	if err != nil {
		return err
	}
	return answer.expect(op, "ok")
}

// Close implements sandbox.Conn.
func (c *Conn) Close() error {
	c.standbys.close()
	return c.host.Close()
}
