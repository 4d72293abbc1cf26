package docker

import (
	"context"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"executor/internal/faults"
)

// Login is what a registry wants to know. The zero value is nobody.
type Login struct {
	Username, Password string
	IdentityToken      string
}

// Credentials returns the login for a registry. It is asked at each pull, since
// tokens end, and once more when the registry refuses the first one.
type Credentials func(ctx context.Context, registry string) (Login, error)

// progressEvery is how often a pull says how far it is.
const progressEvery = 5 * time.Second

// pull has the daemon pull the image.
func (p *Provider) pull(ctx context.Context) error {
	const op = "pull image"
	log := p.log.With().Str("image", p.cfg.Image).Logger()
	ref, err := reference.ParseNormalizedNamed(p.cfg.Image)
	if err != nil {
		return faults.New(faults.SandboxInvalid, op, err).With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	}
	login := func(ctx context.Context) (string, error) { return p.login(ctx, reference.Domain(ref)) }
	first, err := login(ctx)
	if err != nil {
		return faults.New(faults.SandboxDenied, "get the registry's credentials", err)
	}
	ctx, seen := observed(ctx)
	began := time.Now()
	log.Info().Msg("pulling image")
	stream, err := p.client.ImagePull(ctx, p.cfg.Image, client.ImagePullOptions{RegistryAuth: first, PrivilegeFunc: login})
	if err != nil {
		return p.imageFault(ctx, op, seen, err)
	}
	layers, told := map[string]string{}, began
	for message, err := range stream.JSONMessages(ctx) {
		if err != nil {
			return p.fault(ctx, op, seen, err, faults.SandboxImage)
		}
		if message.Error != nil {
			return p.imageFault(ctx, op, seen, p.refusal(ctx, first, message.Error))
		}
		if message.ID != "" {
			layers[message.ID] = message.Status
		}
		if time.Since(told) > progressEvery {
			told = time.Now()
			log.Info().Any("layers", layers).Msg("pulling image")
		}
	}
	log.Info().Dur("took", time.Since(began)).Msg("image pulled")
	return nil
}

func (p *Provider) login(ctx context.Context, domain string) (string, error) {
	if p.cfg.Credentials == nil {
		return "", nil
	}
	login, err := p.cfg.Credentials(ctx, domain)
	if err != nil || login == (Login{}) {
		return "", err
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: login.Username, Password: login.Password,
		IdentityToken: login.IdentityToken, ServerAddress: domain,
	})
}

// refusal gives an error that came in the stream a class: by its code where the
// daemon says one, and else by what the registry says to a look at the image.
func (p *Provider) refusal(ctx context.Context, auth string, inBand *jsonstream.Error) error {
	if inBand.Code != 0 {
		return classed{inBand, errhttp.ToNative(inBand.Code)}
	}
	_, err := p.client.DistributionInspect(ctx, p.cfg.Image, client.DistributionInspectOptions{EncodedRegistryAuth: auth})
	if err == nil || client.IsErrConnectionFailed(err) {
		return classed{inBand, errdefs.ErrInternal}
	}
	return classed{inBand, err}
}

// classed is an error with the class of another.
type classed struct {
	error
	class error
}

func (e classed) Unwrap() []error { return []error{e.error, e.class} }

// imageFault classifies what stands between us and the image. A registry that
// does not have it, or does not give it to us, will not tomorrow.
func (p *Provider) imageFault(ctx context.Context, op string, s *seen, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if client.IsErrConnectionFailed(err) {
		return p.fault(ctx, op, s, err, faults.SandboxImage)
	}
	return classifyImage(op, *s, err)
}

func classifyImage(op string, s seen, err error) error {
	switch code := status(s, err); code {
	case http.StatusNotFound, http.StatusUnauthorized, http.StatusForbidden:
		return missingImage(op, err)
	case http.StatusTooManyRequests, http.StatusBadRequest:
		return classify(op, s, err, faults.SandboxImage)
	}
	return faults.New(faults.SandboxImage, op, err).With(func(f *faults.Fault) {
		f.Outcome, f.RetryAfter = faults.NotStarted, s.retryAfter
	})
}

func missingImage(op string, err error) error {
	return faults.New(faults.SandboxImage, op, err).With(func(f *faults.Fault) {
		f.Outcome, f.Permanent = faults.NotStarted, true
	})
}
