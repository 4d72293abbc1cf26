package sandbox

import (
	"context"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"
)

// Sandbox is an open connection to a host. Its methods are those of Conn,
// each within its own deadline; an error that our context caused is
// context.Cause and not a fault.
type Sandbox struct {
	client   *Client
	provider Provider
	conn     Conn
	entry    Entry
	lease    *lease
	fresh    atomic.Bool // the host was made for this sandbox, and nothing started in it yet
	close    func() error
	kept     atomic.Bool
}

// open dials the host of an entry.
func (c *Client) open(ctx context.Context, p Provider, entry Entry, host Host) (*Sandbox, error) {
	conn, err := call(ctx, c, "dial host", c.timeouts.Dial, func(ctx context.Context) (Conn, error) {
		return p.Dial(ctx, host)
	})
	if err != nil {
		return nil, err
	}
	return &Sandbox{
		client: c, provider: p, conn: conn, entry: entry, lease: newLease(host),
		close: sync.OnceValue(func() error { return c.hangUp(conn) }),
	}, nil
}

// hangUp closes a connection but does not wait for ever: a peer that stopped
// answering must not hold up the deletion of its host.
func (c *Client) hangUp(conn Conn) error {
	const op = "close connection"
	return c.do(context.Background(), op, c.timeouts.Close, func(ctx context.Context) error {
		done := make(chan error, 1)
		go func() { done <- c.guard(op, conn.Close) }()
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// Host is the host as the provider described it, with the end of its lease as
// it was last renewed.
func (s *Sandbox) Host() Host { return s.lease.get() }

// Entry is the host's row in the ledger: what Release and Attach take.
func (s *Sandbox) Entry() Entry { return s.entry }

// Keep makes Ephemeral leave the host alive when its function returns: a
// process in it goes on, and the next claim of the run attaches to it.
func (s *Sandbox) Keep() { s.kept.Store(true) }

// Close closes the connection, once. It ends nothing that runs in the host.
func (s *Sandbox) Close() error { return s.close() }

func (s *Sandbox) prepare(ctx context.Context) error {
	return s.client.do(ctx, "prepare host", s.client.timeouts.Prepare, s.conn.Prepare)
}

// Exec is Conn.Exec.
func (s *Sandbox) Exec(ctx context.Context, cmd Command, stdio Stdio) (Exit, error) {
	return call(ctx, s.client, "exec command", s.client.timeouts.Exec, func(ctx context.Context) (Exit, error) {
		return s.conn.Exec(ctx, cmd, stdio)
	})
}

// Upload is Conn.Upload. An error of content is returned unchanged.
func (s *Sandbox) Upload(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error {
	return s.client.do(ctx, "upload file", s.client.timeouts.Upload, func(ctx context.Context) error {
		return s.conn.Upload(ctx, path, mode, callersReader{content})
	})
}

// Download is Conn.Download. The deadline covers reading it to the end.
func (s *Sandbox) Download(ctx context.Context, path string) (io.ReadCloser, error) {
	const op = "download file"
	opCtx, cancel := withLimit(ctx, op, s.client.timeouts.Download)
	body, err := within(ctx, opCtx, s.client, op, func(ctx context.Context) (io.ReadCloser, error) {
		return s.conn.Download(ctx, path)
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return &download{ReadCloser: body, cancel: cancel, judge: func(err error) error { return judge(ctx, opCtx, op, err) }}, nil
}

type download struct {
	io.ReadCloser
	judge  func(error) error
	cancel context.CancelFunc
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = d.judge(err)
	}
	return n, err
}

func (d *download) Close() error {
	defer d.cancel()
	return d.ReadCloser.Close()
}

// Start is Conn.Start.
func (s *Sandbox) Start(ctx context.Context, launch Launch, cmd Command) (Process, error) {
	s.fresh.Store(false)
	return call(ctx, s.client, "start process", s.client.timeouts.Start, func(ctx context.Context) (Process, error) {
		return s.conn.Start(ctx, launch, cmd)
	})
}

// Follow is Conn.Follow. It has no deadline: a process may take as long as
// its caller's context lets it. Meanwhile the lease of the host is renewed; a
// renewal that finds the host gone ends it. An error of sink is returned
// unchanged.
func (s *Sandbox) Follow(ctx context.Context, launch Launch, from Offsets, sink Sink) (Exit, error) {
	callers := func(stream Stream, offset int64, data []byte) error {
		if err := sink(stream, offset, data); err != nil {
			return &callersError{err}
		}
		return nil
	}
	return call(ctx, s.client, "follow process", 0, func(ctx context.Context) (Exit, error) {
		ctx, end := context.WithCancelCause(ctx)
		var keeper sync.WaitGroup
		keeper.Go(func() {
			if gone := s.keepLease(ctx); gone != nil {
				end(gone)
			}
		})
		defer keeper.Wait()
		defer end(nil)
		exit, err := s.conn.Follow(ctx, launch, from, callers)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return exit, err
	})
}

// Stop is Conn.Stop. The grace is not counted against its deadline.
func (s *Sandbox) Stop(ctx context.Context, launch Launch, grace time.Duration) error {
	return s.client.do(ctx, "stop process", grace+s.client.timeouts.Stop, func(ctx context.Context) error {
		return s.conn.Stop(ctx, launch, grace)
	})
}
