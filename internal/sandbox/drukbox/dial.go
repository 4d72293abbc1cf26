package drukbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"

	"golang.org/x/crypto/ssh"

	"executor/internal/faults"
	"executor/internal/sandbox/sshconn"
)

// connected returns the connection, dialling if there is none; fresh says that
// it did. Of several callers one dials.
func (h *remoteHost) connected(ctx context.Context) (conn *sshconn.Conn, fresh bool, err error) {
	for {
		if conn := h.current(); conn != nil {
			return conn, false, nil
		}
		h.mu.Lock()
		other := h.dialing
		mine := make(chan struct{})
		if other == nil {
			h.dialing = mine
		}
		h.mu.Unlock()
		if other == nil {
			conn, err := h.dial(ctx)
			h.mu.Lock()
			h.dialing = nil
			h.mu.Unlock()
			close(mine)
			return conn, true, err
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (h *remoteHost) dial(ctx context.Context) (*sshconn.Conn, error) {
	const op = "dial host"
	if h.alive.Err() != nil {
		return nil, hungUp(op)
	}
	r, err := h.provider.live(ctx, op, h.id)
	if last := h.lastRow(); err != nil && last.ID != "" && ctx.Err() == nil && !errors.Is(err, faults.SandboxNotFound) {
		// A host does not go away with its control plane.
		r, err = last, nil
	}
	if err != nil {
		return nil, notStarted(err)
	}
	target, err := h.provider.target(r)
	if err != nil {
		return nil, err
	}
	t := h.provider.cfg.Timeouts
	conn, err := sshconn.Dial(ctx, target, sshconn.Limits{Connect: t.Connect, Handshake: t.Handshake, KeepAlive: t.KeepAlive})
	if err != nil {
		return nil, h.whyNot(ctx, op, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alive.Err() != nil {
		_ = conn.Close()
		return nil, hungUp(op)
	}
	h.ssh, h.row = conn, r
	return conn, nil
}

// hungUp is what is left to say after Close.
func hungUp(op string) error {
	return notStarted(faults.New(faults.SandboxUnavailable, op, net.ErrClosed))
}

// whyNot is the fault of a dial that failed. A host that is gone explains most
// of them, a refused key among them.
func (h *remoteHost) whyNot(ctx context.Context, op string, err error) error {
	f := sshconn.Fault(ctx, op, err)
	if ctx.Err() != nil {
		return f
	}
	if _, gone := h.provider.live(ctx, op, h.id); errors.Is(gone, faults.SandboxNotFound) {
		return notStarted(gone)
	}
	return f
}

// target is how a host is reached.
func (p *Provider) target(r row) (sshconn.Target, error) {
	const op = "dial host"
	target := sshconn.Target{User: r.User, Pins: sshconn.ParsePins([]byte(r.KnownHosts)), Signer: p.identity}
	private, err := p.keys.private(r.ID)
	switch {
	case err == nil:
		if target.Signer, err = ssh.ParsePrivateKey(private); err != nil {
			// Its text may hold what it could not parse.
			return target, notStarted(faults.New(faults.SandboxDenied, op, fmt.Errorf("the private key of host %s is none", r.ID)))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return target, notStarted(diskFault("read a private key", err))
	case p.identity == nil:
		return target, notStarted(faults.New(faults.SandboxDenied, op, fmt.Errorf("the private key of host %s is not on this machine", r.ID)))
	}
	if r.InternalHost != nil && *r.InternalHost != "" {
		target.Addrs = append(target.Addrs, net.JoinHostPort(*r.InternalHost, "22"))
	}
	if r.Host != "" {
		target.Addrs = append(target.Addrs, net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
	}
	return target, nil
}
