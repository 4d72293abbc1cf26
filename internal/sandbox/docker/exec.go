package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// exitLimit is how long the daemon may take to know the status of a command
// whose output has ended.
const exitLimit = 10 * time.Second

// container is the way to one container: a remote.Host.
type container struct {
	provider *Provider
	id       string
	patience time.Duration // for an exit status
}

// Close implements remote.Host. Connections are the client's.
func (c *container) Close() error { return nil }

// Run implements remote.Host by an exec. The daemon does not end a command whose
// client is gone, but closes its input.
func (c *container) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	const op = "exec in container"
	p := c.provider
	ctx, seen := observed(ctx)
	made, err := p.client.ExecCreate(ctx, c.id, client.ExecCreateOptions{
		User: p.cfg.User, WorkingDir: "/", Cmd: argv,
		AttachStdin: stdio.In != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, p.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	ctx, seen = observed(ctx)
	stream, err := p.client.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		if seen.status == 0 { // net/http wraps what broke the connection beyond recognition
			err = errors.Join(err, errUnanswered)
		}
		return 0, p.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, stream.Close)()
	if stdio.In != nil {
		go func() {
			_, _ = io.Copy(stream.Conn, stdio.In)
			_ = stream.CloseWrite()
		}()
	}
	out, errs := &writer{to: stdio.Out}, &writer{to: stdio.Err}
	_, err = stdcopy.StdCopy(out, errs, stream.Reader)
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case out.err != nil || errs.err != nil:
		return 0, errors.Join(out.err, errs.err)
	case err != nil:
		return 0, p.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	status, ran, err := c.status(ctx, made.ID)
	if ran {
		p.untried.Delete(c.id)
	}
	if err == nil && !ran {
		return 0, notRun(op, status, out.head)
	}
	return status, err
}

// notRun is a command that the daemon could not start: why, it says on the
// command's output, and its status is 126 for nearly everything. The shell that
// we run is not to blame, as the container runs by it.
func notRun(op string, status int, said []byte) error {
	return faults.New(faults.SandboxUnavailable, op, fmt.Errorf("it did not start (status %d): %s", status, bytes.TrimSpace(said))).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

// status waits for the status of an exec whose stream has ended, and says
// whether it ran. The client reads "no status yet" as 0, so a status counts only
// from a command that has a pid, or failed to start with a status of its own.
func (c *container) status(ctx context.Context, exec string) (status int, ran bool, err error) {
	const op = "read exit status"
	deadline := time.Now().Add(c.patience)
	for pause := time.Millisecond; ; pause = min(2*pause, pollMax) {
		ctx, seen := observed(ctx)
		got, err := c.provider.client.ExecInspect(ctx, exec, client.ExecInspectOptions{})
		if errdefs.IsNotFound(err) { // it is forgotten with its container, or soon after its end
			return 0, false, faults.New(faults.SandboxLost, op, err)
		}
		if err != nil {
			return 0, false, c.provider.fault(ctx, op, seen, err, faults.SandboxLost)
		}
		if !got.Running && (got.PID != 0 || got.ExitCode != 0) {
			return got.ExitCode, got.PID != 0, nil
		}
		if time.Now().After(deadline) {
			return 0, false, faults.New(faults.SandboxLost, op, errors.New("its output has ended, and it has no exit status"))
		}
		if err := sleep(ctx, pause); err != nil {
			return 0, false, err
		}
	}
}

// Diagnose implements remote.Host: what explains that a command broke off.
func (c *container) Diagnose(ctx context.Context) error {
	const op = "look at the container"
	found, err := c.provider.inspect(ctx, op, c.id)
	if err == nil {
		err = ended(op, found)
	}
	if errors.Is(err, faults.SandboxNotFound) {
		if _, untried := c.provider.untried.LoadAndDelete(c.id); untried {
			if why := c.provider.stillborn(ctx); why != nil {
				return why
			}
		}
	}
	if err != nil {
		return err
	}
	if s := state(found); s != api.StateRunning {
		return faults.New(faults.SandboxUnavailable, op, fmt.Errorf("the container is %s", s))
	}
	return c.crowded(ctx)
}

// crowded is a fault if the container has as many processes as it may have: no
// helper can be started in it then.
func (c *container) crowded(ctx context.Context) error {
	if c.provider.cfg.PIDs == 0 {
		return nil
	}
	pids, err := c.processes(ctx)
	if err != nil {
		return err
	}
	if pids.Limit > 0 && pids.Current+crowdedRoom >= pids.Limit {
		return faults.New(faults.SandboxCapacity, "start a helper in the container",
			fmt.Errorf("it has %d processes of %d", pids.Current, pids.Limit))
	}
	return nil
}

// processes counts them as the limit does: threads are among them.
func (c *container) processes(ctx context.Context) (api.PidsStats, error) {
	const op = "count the container's processes"
	ctx, seen := observed(ctx)
	got, err := c.provider.client.ContainerStats(ctx, c.id, client.ContainerStatsOptions{})
	if err != nil {
		return api.PidsStats{}, c.provider.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	defer got.Body.Close()
	var stats api.StatsResponse
	if err := json.NewDecoder(got.Body).Decode(&stats); err != nil {
		return api.PidsStats{}, c.provider.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	return stats.PidsStats, nil
}

// crowdedRoom is what a helper needs: a shell, and a pipeline in it.
const crowdedRoom = 5

// writer keeps the first of what comes, and remembers that it failed.
type writer struct {
	to   io.Writer
	head []byte
	err  error
}

const headSize = 1024

func (w *writer) Write(p []byte) (int, error) {
	w.head = append(w.head, p[:min(len(p), headSize-len(w.head))]...)
	if w.to == nil {
		return len(p), nil
	}
	n, err := w.to.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}
