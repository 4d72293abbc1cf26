// Package sshconn is one SSH connection to a host: what package ssh leaves to
// its callers so that nothing waits for ever.
//
//	dial        a deadline on TCP and another on the handshake; algorithms
//	            ordered by the host keys that are known; no unknown host key
//	keepalive   a question every so often; without an answer the connection is
//	            closed, and everything that waits on it ends
//	contexts    end an operation though the peer has stopped reading: if it does
//	            not let go of a channel in time, the connection is closed
//
// Errors are of package ssh, *DialError, or net's; Fault gives them a kind. The
// package knows no provider.
package sshconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Target is a host and what opens it.
type Target struct {
	Addrs  []string // host:port, tried in this order
	User   string
	Pins   Pins // the host keys that are accepted
	Signer ssh.Signer
}

// Limits of a connection.
type Limits struct {
	Connect   time.Duration // for TCP, to each address
	Handshake time.Duration // from there on
	KeepAlive time.Duration // between questions; three without an answer are the end
}

// missed is how many intervals of KeepAlive an answer may take.
const missed = 3

// Phase is how far a dial came.
type Phase string

const (
	Connecting     Phase = "connect"
	Handshaking    Phase = "handshake"
	CheckingKey    Phase = "host key"
	Authenticating Phase = "authentication"
)

// DialError is a dial that failed. Package ssh has no type for a key that was
// refused: that a dial came as far as Authenticating and was not cut there is
// the evidence.
type DialError struct {
	Addr  string
	Phase Phase
	cause error
}

func (e *DialError) Error() string {
	return fmt.Sprintf("ssh to %s: %s: %v", e.Addr, e.Phase, e.cause)
}
func (e *DialError) Unwrap() error { return e.cause }

// Conn is an open connection. Methods may be called concurrently.
type Conn struct {
	client *ssh.Client
	socket net.Conn
	done   chan struct{}
	quit   context.CancelCauseFunc // of everything that runs on the connection
	alive  context.Context
	group  sync.WaitGroup
}

// Dial connects to the first address of target that answers as the host.
func Dial(ctx context.Context, target Target, limits Limits) (*Conn, error) {
	if len(target.Pins) == 0 {
		return nil, &DialError{Phase: CheckingKey, cause: ErrNoPins}
	}
	err := error(&DialError{Phase: Connecting, cause: errors.New("the host has no address")})
	for _, addr := range target.Addrs {
		var c *Conn
		if c, err = dial(ctx, addr, target, limits); err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("ssh to %s: %w", addr, context.Cause(ctx))
		}
	}
	return nil, err
}

func dial(ctx context.Context, addr string, target Target, limits Limits) (*Conn, error) {
	socket, err := (&net.Dialer{Timeout: limits.Connect}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &DialError{Addr: addr, Phase: Connecting, cause: err}
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	phase := Handshaking
	config := &ssh.ClientConfig{
		User:              target.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(target.Signer)},
		HostKeyAlgorithms: target.Pins.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			phase = CheckingKey
			if err := target.Pins.check(key); err != nil {
				return err
			}
			phase = Handshaking
			return nil
		},
		AuthCallback: func(*ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			phase = Authenticating
			return nil, nil
		},
	}
	_ = socket.SetDeadline(time.Now().Add(limits.Handshake))
	conn, channels, requests, err := ssh.NewClientConn(socket, addr, config)
	if err != nil {
		_ = socket.Close()
		return nil, &DialError{Addr: addr, Phase: phase, cause: err}
	}
	_ = socket.SetDeadline(time.Time{})
	if !stop() { // ctx ended in the last moment
		_ = conn.Close()
		return nil, context.Cause(ctx)
	}
	c := &Conn{client: ssh.NewClient(conn, channels, requests), socket: socket, done: make(chan struct{})}
	c.alive, c.quit = context.WithCancelCause(context.Background())
	c.group.Go(func() {
		c.quit(c.client.Wait())
		close(c.done)
	})
	c.group.Go(func() { c.keepAlive(limits.KeepAlive) })
	return c, nil
}

// keepalive is a request that no server knows and every server answers.
const keepalive = "keepalive@openssh.com"

// errSilent ends a connection whose peer does not answer.
var errSilent = errors.New("the host does not answer keepalives")

// keepAlive asks the host something at each interval.
func (c *Conn) keepAlive(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-ticker.C:
		}
		// Closing the socket wakes the request, also from a write.
		silent := time.AfterFunc(missed*interval, func() { c.cut(errSilent) })
		_, _, err := c.client.SendRequest(keepalive, true, nil)
		silent.Stop()
		if err != nil {
			return
		}
	}
}

// cut ends the connection without asking the peer.
func (c *Conn) cut(why error) {
	c.quit(why)
	_ = c.socket.Close()
}

// Done is closed when the connection is over.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection, and what waits on it.
func (c *Conn) Close() error {
	c.cut(net.ErrClosed)
	c.group.Wait()
	return nil
}
