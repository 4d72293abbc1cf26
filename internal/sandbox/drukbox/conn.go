package drukbox

import (
	"context"
	"io"
	"io/fs"

	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
)

// base is where we keep our files in a host, below the directory that SSH
// begins in.
const base = ".executor"

// Dial implements sandbox.Provider. The connection is made again when it
// breaks.
func (p *Provider) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	h := &remoteHost{provider: p, id: host.ID}
	h.alive, h.quit = context.WithCancel(context.Background())
	if _, _, err := h.connected(ctx); err != nil {
		h.quit()
		return nil, err
	}
	return &conn{host: h, turn: make(chan struct{}, 1), Conn: remote.New(h, remote.Config{
		Base: base, Home: p.cfg.Home, Patience: p.cfg.Timeouts.Reconnect, Retry: p.cfg.Timeouts.FirstWait,
		OutputCeiling: p.cfg.OutputCeiling,
	})}, nil
}

// conn is a connection that prepares its host before anything new is done in
// it, where nobody has asked for that: a host of drukbox comes with nothing.
type conn struct {
	*remote.Conn
	host *remoteHost

	turn     chan struct{} // held by who prepares
	prepared bool
}

var _ sandbox.Conn = (*conn)(nil)

// Prepare implements sandbox.Conn.
func (c *conn) Prepare(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done(): // whoever prepares may have more time than we
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
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
