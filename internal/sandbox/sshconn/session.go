package sshconn

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/crypto/ssh"
)

// letGo is how long a peer may take to let go of a channel that we gave up,
// and we to hand over the last bytes of one that ended.
const letGo = 3 * time.Second

// Run runs a command line in the login shell of the host's user to its end.
// The error is that of package ssh: *ssh.ExitError for a status other than 0
// and for a signal, *ssh.ExitMissingError where neither came. An error of in,
// out or errs ends it and is returned unchanged.
//
// When ctx is done the channel is closed and its cause returned; what runs in
// the host is not ended by that.
func (c *Conn) Run(ctx context.Context, command string, in io.Reader, out, errs io.Writer) error {
	callers := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	session, err := c.open(ctx)
	if err != nil {
		return &OpenError{err}
	}
	release := c.giveUp(ctx, session)
	defer release()

	stdin, err := session.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := session.StderrPipe()
	if err != nil {
		return err
	}
	if err := session.Start(command); err != nil {
		return c.why(ctx, err)
	}
	go func() { // in may never end: nobody waits for it
		defer stdin.Close()
		if in == nil {
			return
		}
		if err := copied(stdin, in); err != nil {
			fail(err)
		}
	}()
	read := make(chan error, 2)
	for from, to := range map[io.Reader]io.Writer{stdout: out, stderr: errs} {
		go func() {
			err := drained(to, from)
			if err != nil {
				fail(err)
			}
			read <- err
		}()
	}
	err = session.Wait()
	for range 2 {
		<-read
	}
	if ctx.Err() != nil && callers.Err() == nil {
		return context.Cause(ctx) // in, out or errs failed, whatever became of the command
	}
	return c.why(ctx, err)
}

// why is err, or what lies behind it: the end of ctx or of the connection.
func (c *Conn) why(ctx context.Context, err error) error {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit):
		return err
	case errors.As(err, &missing) && c.answers(ctx):
		return err
	}
	// A connection that ends tears its sessions down first, as if they had
	// ended without an exit status.
	select {
	case <-c.done:
		return &BrokenError{context.Cause(c.alive)}
	default:
		return err
	}
}

// answers reports whether the connection stands. Where it does not, it returns
// after its end.
func (c *Conn) answers(ctx context.Context) bool {
	answered := make(chan struct{})
	go func() {
		if _, _, err := c.client.SendRequest(keepalive, true, nil); err == nil {
			close(answered)
		}
	}()
	select {
	case <-answered:
		return true
	case <-c.done:
		return false
	case <-ctx.Done():
		return false
	}
}

// BrokenError is an operation that the end of its connection ended.
type BrokenError struct{ cause error }

func (e *BrokenError) Error() string {
	if e.cause == nil {
		return "the ssh connection ended"
	}
	return "the ssh connection ended: " + e.cause.Error()
}
func (e *BrokenError) Unwrap() error { return e.cause }

// OpenError is a session that could not be opened: nothing was run in it.
type OpenError struct{ cause error }

func (e *OpenError) Error() string { return "open an ssh session: " + e.cause.Error() }
func (e *OpenError) Unwrap() error { return e.cause }

// copied copies our reader into the command's stdin. Only an error of ours is
// one: a command need not read its input.
func copied(to io.Writer, from io.Reader) error {
	source := &remembering{from: from}
	_, _ = io.Copy(to, source)
	return source.err
}

type remembering struct {
	from io.Reader
	err  error
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// drained copies the command's output into our writer. Only an error of ours
// is one: how the stream ended is Wait's to say.
func drained(to io.Writer, from io.Reader) error {
	if to == nil {
		to = io.Discard
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}
