package drukbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
)

// base is where we keep our files in a host, below the directory that SSH
// begins in.
const base = ".executor"

// Dial implements sandbox.Provider. The connection keeps the host's lease from
// ending, and is made again when it breaks.
func (p *Provider) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	h := &remoteHost{provider: p, id: host.ID}
	h.alive, h.quit = context.WithCancel(context.Background())
	if _, _, err := h.connected(ctx); err != nil {
		h.quit()
		return nil, err
	}
	h.group.Go(func() { p.keepLease(h.alive, h.lastRow()) })
	return &conn{host: h, Conn: remote.New(h, remote.Config{
		Base: base, Home: p.cfg.Home, Patience: p.cfg.Timeouts.Reconnect, Retry: p.cfg.Timeouts.FirstWait,
	})}, nil
}

// conn is a connection that prepares its host before anything new is done in
// it, where nobody has asked for that: a host of drukbox comes with nothing.
type conn struct {
	*remote.Conn
	host *remoteHost

	preparing sync.Mutex
	prepared  bool
}

var _ sandbox.Conn = (*conn)(nil)

// Prepare implements sandbox.Conn.
func (c *conn) Prepare(ctx context.Context) error {
	c.preparing.Lock()
	defer c.preparing.Unlock()
	if c.prepared {
		return nil
	}
	err := c.Conn.Prepare(ctx)
	c.prepared = err == nil
	return err
}

// Exec implements sandbox.Conn.
func (c *conn) Exec(ctx context.Context, cmd sandbox.Command, stdio sandbox.Stdio) (sandbox.Exit, error) {
	if err := c.Prepare(ctx); err != nil {
		return sandbox.Exit{}, err
	}
	return c.Conn.Exec(ctx, cmd, stdio)
}

// Upload implements sandbox.Conn.
func (c *conn) Upload(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error {
	if err := c.Prepare(ctx); err != nil {
		return err
	}
	return c.Conn.Upload(ctx, path, mode, content)
}

// Start implements sandbox.Conn.
func (c *conn) Start(ctx context.Context, launch sandbox.Launch, cmd sandbox.Command) (sandbox.Process, error) {
	if err := c.Prepare(ctx); err != nil {
		return sandbox.Process{}, notStarted(err)
	}
	return c.Conn.Start(ctx, launch, cmd)
}

// Follow implements sandbox.Conn. remote counts its patience from the last byte
// that came. A process may say nothing for longer than that; then a
// connection that breaks deserves all of the patience still.
func (c *conn) Follow(ctx context.Context, launch sandbox.Launch, from sandbox.Offsets, sink sandbox.Sink) (sandbox.Exit, error) {
	failed := false
	counted := func(stream sandbox.Stream, offset int64, data []byte) error {
		if err := sink(stream, offset, data); err != nil {
			failed = true
			return err
		}
		switch stream {
		case sandbox.Stdout:
			from.Stdout = offset + int64(len(data))
		case sandbox.Stderr:
			from.Stderr = offset + int64(len(data))
		}
		return nil
	}
	for {
		exit, err := c.Conn.Follow(ctx, launch, from, counted)
		if ctx.Err() != nil || failed || !errors.Is(err, faults.SandboxUnavailable) {
			return exit, err
		}
		if c.host.alive.Err() != nil || time.Since(c.host.changed()) > c.host.provider.cfg.Timeouts.Reconnect {
			return exit, err
		}
		if !sleep(ctx, c.host.provider.cfg.Timeouts.FirstWait) {
			return sandbox.Exit{}, context.Cause(ctx)
		}
	}
}
