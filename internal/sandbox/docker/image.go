package docker

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"github.com/rs/zerolog"

	"executor/internal/faults"
)

// lookLimit is how long the registry may take to explain a pull that failed.
const lookLimit = 30 * time.Second

// pull has the daemon pull the image. A registry that refuses it is asked once
// more if there is another login by now: tokens end. Without a login, the
// registry decides whether that will do; if it will not, there may be one later.
func (p *Provider) pull(ctx context.Context) error {
	const op = "pull image"
	ref, err := reference.ParseNormalizedNamed(p.cfg.Image)
	if err != nil {
		return faults.New(faults.SandboxInvalid, op, err).With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	}
	log := p.log.With().Str("image", p.cfg.Image).Logger()
	began := time.Now()
	auth, noLogin := p.login(ctx, ref)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if noLogin != nil {
		log.Warn().Err(noLogin).Msg("no login for the registry; pulling without one")
	}
	err = p.pullAs(ctx, auth, log)
	if refused(err) {
		if again, failed := p.login(ctx, ref); failed == nil && again != auth {
			noLogin, err = nil, p.pullAs(ctx, again, log)
		}
	}
	if err != nil {
		if f := faults.Of(err); noLogin != nil && f.Kind == faults.SandboxImage {
			f.Cause, f.Permanent = errors.Join(f.Cause, noLogin), false
		}
		return err
	}
	log.Info().Dur("took", time.Since(began)).Msg("image pulled")
	return nil
}

// refused reports whether the registry does not have the image, or does not
// give it to us.
func refused(err error) bool {
	f := faults.Of(err)
	return f != nil && f.Kind == faults.SandboxImage && f.Permanent
}

func (p *Provider) pullAs(ctx context.Context, auth string, log zerolog.Logger) error {
	const op = "pull image"
	ctx, seen := observed(ctx)
	log.Info().Msg("pulling image")
	stream, err := p.client.ImagePull(ctx, p.cfg.Image, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return p.imageFault(ctx, op, seen, p.explain(ctx, seen, auth, err))
	}
	var sofar progress
	told := time.Now()
	for message, err := range stream.JSONMessages(ctx) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return p.fault(ctx, op, seen, err, faults.SandboxImage)
		}
		if message.Error != nil {
			return p.imageFault(ctx, op, seen, p.explain(ctx, seen, auth, message.Error))
		}
		sofar.see(message)
		if time.Since(told) >= p.progressEvery {
			told = time.Now()
			log.Info().EmbedObject(&sofar).Msg("pulling image")
		}
	}
	return nil
}

// explain gives an error of a pull a class: by what the daemon says of it, and
// where it says nothing, by what the registry says to a look at the image. A
// daemon with Docker's own image store answers 500 to a refused login and to a
// rate limit, and has no code in its stream; of a look it passes on the status.
func (p *Provider) explain(ctx context.Context, s *seen, auth string, err error) error {
	var inBand *jsonstream.Error
	switch {
	case ctx.Err() != nil, client.IsErrConnectionFailed(err):
		return err
	case errors.As(err, &inBand) && inBand.Code != 0:
		return classed{err, errhttp.ToNative(inBand.Code)}
	case inBand == nil && s.status != http.StatusInternalServerError:
		return err
	}
	look, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	_, refusal := p.client.DistributionInspect(look, p.cfg.Image, client.DistributionInspectOptions{EncodedRegistryAuth: auth})
	if refusal == nil || look.Err() != nil || client.IsErrConnectionFailed(refusal) {
		*s = seen{}
		return classed{err, errdefs.ErrInternal}
	}
	return classed{err, refusal}
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
