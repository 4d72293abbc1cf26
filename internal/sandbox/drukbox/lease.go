package drukbox

import (
	"context"
	"errors"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

const (
	// leaseMargin is the shortest lease that can be renewed in time.
	leaseMargin = 5 * time.Second
	leaseTick   = 15 * time.Second
)

// Extend renews a host's lease to until, or to as late as the control plane
// allows, and returns the host with the end that it got. A step that needs the
// host for longer than that needs another host. It shortens nothing.
func (p *Provider) Extend(ctx context.Context, host sandbox.Host, until time.Time) (sandbox.Host, error) {
	const op = "renew lease"
	r, err := p.live(ctx, op, host.ID)
	if err != nil {
		return sandbox.Host{}, err
	}
	if r, err = p.renewedTo(ctx, r, until); err != nil {
		return sandbox.Host{}, p.orGone(ctx, op, host.ID, err)
	}
	return p.host(r), nil
}

// renewed is the row with a lease that is not short, where the control plane
// allows it.
func (p *Provider) renewed(ctx context.Context, r row) (row, error) {
	if r.ExpiresAt == nil || r.ExpiresAt.Sub(p.api.now()) > p.cfg.Lease/2 {
		return r, nil
	}
	return p.renewedTo(ctx, r, p.api.now().Add(p.cfg.Lease))
}

func (p *Provider) renewedTo(ctx context.Context, r row, until time.Time) (row, error) {
	if r.LeaseDeadline != nil && until.After(r.LeaseDeadline.Time) {
		until = r.LeaseDeadline.Time
	}
	if r.ExpiresAt == nil || !until.After(r.ExpiresAt.Time) {
		return r, nil
	}
	return p.api.renew(ctx, r.ID, until)
}

// keepLease renews a host's lease until ctx is done, each time half of it is
// over. A renewal that fails is repeated soon; one that the control plane
// refuses, because the host is gone or cannot be kept any longer, is the last.
func (p *Provider) keepLease(ctx context.Context, r row) {
	log := p.log.With().Str("host_id", r.ID).Logger()
	for r.ExpiresAt != nil && (r.LeaseDeadline == nil || r.ExpiresAt.Before(r.LeaseDeadline.Time)) {
		if early := r.ExpiresAt.Sub(p.api.now()) - p.cfg.Lease/2; early > 0 {
			// Not all at once: this machine may sleep, and its timers with it.
			if !sleep(ctx, min(early, leaseTick)) {
				return
			}
			continue
		}
		renewed, err := p.renewed(ctx, r)
		if err == nil && !renewed.end().After(r.end()) && renewed.ExpiresAt != nil {
			err = errors.New("it ends no later than before")
		}
		if err == nil {
			log.Debug().Time("expires_at", renewed.end()).Msg("lease renewed")
			r = renewed
			continue
		}
		if ctx.Err() != nil {
			return
		}
		err = p.orGone(ctx, "renew lease", r.ID, err)
		log.Warn().Err(err).Time("expires_at", r.end()).Msg("lease not renewed")
		if final(err) || !sleep(ctx, p.cfg.Lease/20) {
			return
		}
	}
}

func (r row) end() time.Time {
	if r.ExpiresAt == nil {
		return time.Time{}
	}
	return r.ExpiresAt.Time
}

// final reports that another try would be refused as well. A conflict is one:
// a host that was active is now in error, or on its way out.
func final(err error) bool {
	for _, kind := range []*faults.Kind{faults.SandboxNotFound, faults.SandboxInvalid, faults.SandboxDenied, faults.SandboxConflict} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// sleep returns false if ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
