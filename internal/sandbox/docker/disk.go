package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"executor/internal/faults"
)

// madeUnlimited reports whether the daemon makes the container once its disk is
// not limited. That a storage driver cannot limit it, the daemon says in words
// only, with status 500; so this is tried. What is made goes at once, and is
// listed until then, under a key of nobody's.
func (p *Provider) madeUnlimited(ctx context.Context, options client.ContainerCreateOptions) bool {
	const suffix = "-unlimited"
	options.Name += suffix
	options.Config.Labels[labelKey] += suffix
	options.HostConfig.StorageOpt = nil
	made, err := p.client.ContainerCreate(ctx, options)
	if err != nil {
		return errdefs.IsConflict(err) // another one tries the same
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := p.Delete(after, made.ID); err != nil {
		p.log.Warn().Err(err).Str("container", made.ID).Msg("a container that was made to try stays; it is listed")
	}
	return true
}

func noDiskLimit(op string, limit int64, cause error) error {
	return faults.New(faults.SandboxUnsupported, op, fmt.Errorf("the daemon makes the container only without its disk limit of %d bytes: %w", limit, cause)).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}
