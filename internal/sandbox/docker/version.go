package docker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"executor/internal/faults"
)

// minAPI is the oldest API that this package is written for: Docker 20.10.
const minAPI = "1.41"

// negotiate agrees on a version of the API with the daemon, once: the highest
// that both speak. Without it the client would go on with a wrong one and let
// each request fail in its own way.
func (p *Provider) negotiate(ctx context.Context) error {
	const op = "agree on an API version with the daemon"
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done(): // whoever negotiates may have more time than we
		return context.Cause(ctx)
	}
	if p.ready {
		return nil
	}
	ctx, seen := observed(ctx)
	ping, err := p.client.Ping(ctx, client.PingOptions{})
	if err != nil {
		return p.fault(ctx, op, seen, err, faults.SandboxResponse)
	}
	if ping.APIVersion == "" || versions.LessThan(ping.APIVersion, minAPI) {
		return unsupported(op, ping.APIVersion, nil)
	}
	if _, err := p.client.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return p.fault(ctx, op, seen, err, faults.SandboxResponse)
	}
	// A daemon that has left our version behind says so to a request that names it.
	_, err = p.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if errdefs.IsInvalidArgument(err) {
		return unsupported(op, ping.APIVersion, err)
	}
	if err != nil {
		return p.fault(ctx, op, seen, err, faults.SandboxResponse)
	}
	p.ready = true
	p.log.Debug().Str("daemon_api", ping.APIVersion).Str("api", p.client.ClientVersion()).Msg("docker reached")
	return nil
}

func unsupported(op, daemon string, cause error) error {
	err := fmt.Errorf("the daemon speaks API %q, and we speak %s to %s", daemon, minAPI, client.MaxAPIVersion)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return faults.New(faults.SandboxUnsupported, op, err).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}
