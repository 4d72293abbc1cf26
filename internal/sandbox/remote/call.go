package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

const (
	statusNotExecutable = 126
	statusNotFound      = 127

	// cleanUp is for how long we look after an operation that was cancelled.
	cleanUp = 4 * time.Second
	settles = time.Second // a host on its way out is gone by then
	maxSaid = 64 << 10
)

// helperMark is in the environment of a running remote.sh.
const helperMark = "EXECUTOR_HELPER"

func newNonce() string { return rand.Text() }

// call runs one operation of remote.sh and returns its answer. Output goes to
// stdio as it comes. An error of the caller's reader or writer is returned
// unchanged; a fault says why there is no answer.
func (c *Conn) call(ctx context.Context, op string, args []string, stdio sandbox.Stdio) (answer, error) {
	return c.callAs(ctx, newNonce(), op, args, stdio)
}

func (c *Conn) callAs(ctx context.Context, nonce, op string, args []string, stdio sandbox.Stdio) (answer, error) {
	return c.run(ctx, nonce, op, args, stdio, nil)
}

// following is an answer with which an operation is not over yet.
const following = "following"

// run is callAs, where goesOn hears that the operation is following, and says
// where its stderr goes from there on.
func (c *Conn) run(ctx context.Context, nonce, op string, args []string, stdio sandbox.Stdio, goesOn func(answer) io.Writer) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := newSource(ctx, stdio.In, cancel)
	out := &sink{to: stdio.Out, cancel: cancel}
	errs := &splitter{to: &sink{to: stdio.Err, cancel: cancel}, nonce: []byte(nonce + " "), goesOn: goesOn}
	run := sandbox.Stdio{Out: out, Err: errs}
	if in != nil {
		run.In = in
	}
	status, err := c.host.Run(ctx, c.argv(nonce, op, args), run)
	if theirs := errors.Join(out.err, errs.to.err); theirs != nil {
		return answer{}, theirs
	}
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	if err == nil && errs.found {
		return errs.parse(), nil
	}
	if gone := c.host.Diagnose(ctx); gone != nil && (err == nil || !errors.Is(gone, faults.SandboxUnavailable)) {
		return answer{}, gone
	}
	switch {
	case err != nil:
		return answer{}, err
	case status == statusNotFound || status == statusNotExecutable || status == killed:
		if why := c.unsettled(ctx, op, status, errs.flush()); why != nil {
			return answer{}, why
		}
	}
	return answer{}, faults.New(faults.SandboxLost, op, fmt.Errorf("the helper exited with %d and no answer: %s", status, errs.flush()))
}

// unsettled is what the statuses say of a host that did not run our shell, or
// whose shell was killed: nil, if it does well a moment later. Alone they prove
// nothing, since some have them too for a connection that broke, and for a host
// that is on its way out.
func (c *Conn) unsettled(ctx context.Context, op string, status int, said string) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(settles):
	}
	again, err := c.host.Run(ctx, []string{c.cfg.Shell, "-c", "exit 0"}, sandbox.Stdio{Out: io.Discard, Err: io.Discard})
	if gone := c.host.Diagnose(ctx); gone != nil {
		return gone
	}
	if err != nil || again != status || status == killed {
		return nil
	}
	return faults.New(faults.SandboxInvalid, op, fmt.Errorf("the host cannot run %s: %s", c.cfg.Shell, said))
}

// argv starts remote.sh with nothing in its environment but the host's PATH.
func (c *Conn) argv(nonce, op string, args []string) []string {
	const clean = `exec env -i "PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}" "$@"`
	return append([]string{c.cfg.Shell, "-c", clean, "sh",
		helperMark + "=" + nonce, c.cfg.Shell, "-c", script, "sh",
		op, nonce, c.cfg.Base, c.cfg.Work, c.cfg.Home, c.cfg.Tmp}, args...)
}

// answer is what an operation says in the end.
type answer struct {
	word string
	args []string
	body []byte // the lines after the first
	said string // what its tools said, for people
}

// splitter hands on what comes before the nonce and keeps what comes after it;
// once more, where the answer is following.
type splitter struct {
	to     *sink
	nonce  []byte
	held   []byte // what may be the beginning of the nonce
	found  bool
	said   bytes.Buffer // what was handed on to nobody
	answer bytes.Buffer
	goesOn func(answer) io.Writer // nil: nothing does, or it did
}

func (s *splitter) Write(p []byte) (int, error) {
	if s.found {
		return len(p), s.keep(p)
	}
	data := append(s.held, p...)
	if i := bytes.Index(data, s.nonce); i >= 0 {
		s.found, s.held = true, nil
		if err := s.pass(data[:i]); err != nil {
			return 0, err
		}
		return len(p), s.keep(data[i+len(s.nonce):])
	}
	keep := 0
	for n := min(len(s.nonce)-1, len(data)); n > 0; n-- {
		if bytes.HasSuffix(data, s.nonce[:n]) {
			keep = n
			break
		}
	}
	rest := bytes.Clone(data[len(data)-keep:])
	if err := s.pass(data[:len(data)-keep]); err != nil {
		return 0, err
	}
	s.held = rest
	return len(p), nil
}

// keep adds to the answer. Is it following, then another is looked for behind
// its line.
func (s *splitter) keep(p []byte) error {
	if s.goesOn == nil {
		s.answer.Write(p[:min(len(p), max(0, maxSaid-s.answer.Len()))])
		return nil
	}
	s.answer.Write(p)
	_, rest, whole := bytes.Cut(s.answer.Bytes(), []byte("\n"))
	if !whole {
		return nil
	}
	rest = bytes.Clone(rest)
	a, goesOn := s.parse(), s.goesOn
	s.goesOn = nil
	if a.word != following {
		return nil
	}
	s.to.to, s.found = goesOn(a), false
	s.answer.Reset()
	_, err := s.Write(rest)
	return err
}

func (s *splitter) parse() answer {
	line, body, _ := bytes.Cut(s.answer.Bytes(), []byte("\n"))
	fields := strings.Fields(string(line))
	a := answer{body: body, said: string(bytes.TrimSpace(s.said.Bytes()))}
	if len(fields) > 0 {
		a.word, a.args = fields[0], fields[1:]
	}
	return a
}

func (s *splitter) pass(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if s.to.to == nil {
		s.said.Write(p[:min(len(p), max(0, maxSaid-s.said.Len()))])
		return nil
	}
	_, err := s.to.Write(p)
	return err
}

func (s *splitter) flush() string { return strings.TrimSpace(s.said.String() + string(s.held)) }

// sink ends the operation when its writer fails, and remembers why.
type sink struct {
	to     io.Writer
	cancel context.CancelCauseFunc
	err    error
}

func (s *sink) Write(p []byte) (int, error) {
	if s.to == nil {
		return len(p), nil
	}
	n, err := s.to.Write(p)
	if err != nil {
		s.err = err
		s.cancel(err)
	}
	return n, err
}

// source ends the operation when its reader fails: what was sent is not whole.
type source struct {
	ctx    context.Context
	from   io.Reader
	cancel context.CancelCauseFunc
}

func newSource(ctx context.Context, from io.Reader, cancel context.CancelCauseFunc) *source {
	if from == nil {
		return nil
	}
	return &source{ctx, from, cancel}
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.from.Read(p)
	if err != nil && err != io.EOF {
		s.cancel(err)
	}
	return n, err
}
