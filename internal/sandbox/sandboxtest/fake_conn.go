package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

var errClosed = errors.New("the connection is closed")

// conn is a connection to a host of a Fake.
type conn struct {
	fake   *Fake
	host   *host
	once   sync.Once
	closed chan struct{}
}

// perform is the fake's, for a connection that is open to a host that is
// there.
func (c *conn) perform(ctx context.Context, call Call, effect func() error) error {
	call.Key, call.HostID = c.host.Key, c.host.ID
	return c.fake.perform(ctx, call, func() error {
		if err := c.usable(); err != nil {
			return err
		}
		if !c.host.prepared && call.Op != Prepare && call.Op != Stop && call.Op != Follow {
			c.fake.misuse = append(c.fake.misuse, fmt.Sprintf("%s in %s, which is not prepared", call.Op, c.host.ID))
			return faults.Errorf(faults.SandboxInvalid, "host %s is not prepared", c.host.ID)
		}
		return effect()
	})
}

func (c *conn) usable() error {
	select {
	case <-c.closed:
		return faults.New(faults.SandboxUnavailable, "use connection", errClosed)
	case <-c.host.gone:
		return faults.Errorf(faults.SandboxNotFound, "host %s is gone", c.host.ID)
	default:
		return nil
	}
}

func (c *conn) Prepare(ctx context.Context) error {
	return c.perform(ctx, Call{Op: Prepare}, func() error {
		c.host.prepared = true
		return nil
	})
}

// Exec succeeds without output.
func (c *conn) Exec(ctx context.Context, cmd sandbox.Command, _ sandbox.Stdio) (sandbox.Exit, error) {
	return sandbox.Exit{}, c.perform(ctx, Call{Op: Exec, Command: cmd}, func() error { return nil })
}

func (c *conn) Upload(ctx context.Context, path string, _ fs.FileMode, content io.Reader) error {
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return c.perform(ctx, Call{Op: Upload}, func() error {
		if !filepath.IsLocal(path) {
			return faults.Errorf(faults.SandboxInvalid, "%q leaves the working directory", path)
		}
		c.host.files[filepath.Clean(path)] = data
		return nil
	})
}

func (c *conn) Download(ctx context.Context, path string) (io.ReadCloser, error) {
	var data []byte
	err := c.perform(ctx, Call{Op: Download}, func() error {
		if !filepath.IsLocal(path) {
			return faults.Errorf(faults.SandboxInvalid, "%q leaves the working directory", path)
		}
		var ok bool
		if data, ok = c.host.files[filepath.Clean(path)]; !ok {
			return &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (c *conn) Start(ctx context.Context, launch sandbox.Launch, cmd sandbox.Command) (sandbox.Process, error) {
	var started sandbox.Process
	err := c.perform(ctx, Call{Op: Start, Launch: launch, Command: cmd}, func() error {
		p := c.host.processes[launch.Name()]
		started.Adopted = p != nil
		if p == nil {
			p = c.fake.start(c.host, launch)
		}
		started.StartedAt = p.startedAt
		return nil
	})
	return started, err
}

func (c *conn) Follow(ctx context.Context, launch sandbox.Launch, from sandbox.Offsets, sink sandbox.Sink) (sandbox.Exit, error) {
	call := Call{Op: Follow, Key: c.host.Key, HostID: c.host.ID, Launch: launch}
	var exit sandbox.Exit
	err := c.fake.next(ctx, call).run(ctx, func() (err error) {
		exit, err = c.follow(ctx, launch, from, sink)
		return err
	})
	return exit, err
}

func (c *conn) follow(ctx context.Context, launch sandbox.Launch, from sandbox.Offsets, sink sandbox.Sink) (sandbox.Exit, error) {
	c.fake.mu.Lock()
	err, p := c.usable(), c.host.processes[launch.Name()]
	c.fake.mu.Unlock()
	if err != nil {
		return sandbox.Exit{}, err
	}
	if p == nil {
		return sandbox.Exit{}, faults.Errorf(faults.SandboxLost, "%s was never started", launch.Name()).
			With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	}
	if err := feed(sink, sandbox.Stdout, from.Stdout, p.Stdout); err != nil {
		return sandbox.Exit{}, err
	}
	if err := feed(sink, sandbox.Stderr, from.Stderr, p.Stderr); err != nil {
		return sandbox.Exit{}, err
	}
	for ended := false; !ended; {
		select {
		case <-p.until():
			ended = true
		case <-p.stopped:
			ended = true
		case <-c.fake.leaseOver(c.host): // unless it was renewed meanwhile
		case <-c.host.gone:
			return sandbox.Exit{}, faults.Errorf(faults.SandboxNotFound, "the host of %s is gone", launch.Name())
		case <-c.closed:
			return sandbox.Exit{}, faults.New(faults.SandboxUnavailable, "follow process", errClosed)
		case <-ctx.Done():
			return sandbox.Exit{}, ctx.Err()
		}
	}
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	return p.ending()
}

func feed(sink sandbox.Sink, stream sandbox.Stream, from int64, output string) error {
	if from >= int64(len(output)) {
		return nil
	}
	return sink(stream, from, []byte(output[from:]))
}

func (c *conn) Stop(ctx context.Context, launch sandbox.Launch, _ time.Duration) error {
	return c.perform(ctx, Call{Op: Stop, Launch: launch}, func() error {
		if p := c.host.processes[launch.Name()]; p != nil {
			p.stop()
		}
		return nil
	})
}

func (c *conn) Close() error {
	call := Call{Op: Close, Key: c.host.Key, HostID: c.host.ID}
	return c.fake.next(context.Background(), call).run(context.Background(), func() error {
		c.once.Do(func() { close(c.closed) })
		return nil
	})
}
