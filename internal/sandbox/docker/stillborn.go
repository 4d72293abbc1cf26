package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// A container with a lease removes itself when it ends, and with it goes the
// reason: an image without a shell looks like a host that somebody deleted.

// stillbornLimit is for how long we look for the reason.
const stillbornLimit = 10 * time.Second

// stillborn says why a container that nothing ever ran in could not begin, by
// one that is made like it and stays. nil: that one can.
func (p *Provider) stillborn(ctx context.Context) error {
	const op = "begin container"
	ctx, cancel := context.WithTimeout(ctx, stillbornLimit)
	defer cancel()
	options := p.options(sandbox.HostSpec{Key: sandbox.Key("probe:" + rand.Text())})
	options.HostConfig.AutoRemove = false
	made, err := p.client.ContainerCreate(ctx, options)
	if err != nil {
		return nil
	}
	defer func() {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), stillbornLimit)
		defer cancel()
		if err := p.Delete(after, made.ID); err != nil {
			p.log.Warn().Err(err).Str("container", made.ID).Msg("a container that was a probe stays; it is listed")
		}
	}()
	if err := p.start(ctx, made.ID, true); err != nil {
		return nil
	}
	for {
		found, err := p.inspect(ctx, op, made.ID)
		if err == nil {
			err = ended(op, found)
		}
		if errors.Is(err, faults.SandboxInvalid) || errors.Is(err, faults.SandboxOOM) {
			return err
		}
		_, unprepared := p.client.ContainerStatPath(ctx, made.ID, client.ContainerStatPathOptions{Path: path.Join(baseDir, "run")})
		if err != nil || !errdefs.IsNotFound(unprepared) || sleep(ctx, pollMin) != nil {
			return nil
		}
	}
}
