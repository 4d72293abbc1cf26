package sshconn

import (
	"context"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
)

// open opens a session. A peer that does not answer does not hold it up: what
// comes late is closed.
func (c *Conn) open(ctx context.Context) (*ssh.Session, error) {
	type result struct {
		session *ssh.Session
		err     error
	}
	done := make(chan result, 1)
	late := func() {
		r := <-done
		if r.err == nil {
			_ = r.session.Close()
		}
	}
	go func() {
		session, err := c.client.NewSession()
		done <- result{session, err}
	}()
	select {
	case r := <-done:
		return r.session, c.why(ctx, r.err)
	case <-c.done: // NewSession may be waiting for an answer still
		go late()
		return nil, c.why(ctx, net.ErrClosed)
	case <-ctx.Done():
		go late()
		return nil, context.Cause(ctx)
	}
}

// giveUp closes a channel when ctx is done. The function it returns is called
// when nobody uses the channel any more; it closes it as well. A peer that
// does not let go in between loses the connection.
func (c *Conn) giveUp(ctx context.Context, channel io.Closer) (release func()) {
	late := time.AfterFunc(time.Hour, func() { c.cut(errSilent) })
	late.Stop()
	closed := make(chan struct{})
	ask := func() {
		defer close(closed)
		late.Reset(letGo)
		_ = channel.Close()
	}
	stop := context.AfterFunc(ctx, ask)
	return func() {
		if stop() {
			ask()
		}
		<-closed
		late.Stop()
	}
}
