package drukbox

import (
	"context"
	"errors"
	"time"

	"executor/internal/sandbox"
)

// leaseMargin is the shortest lease that can be renewed in time.
const leaseMargin = 5 * time.Second

// Renew implements sandbox.Renewer. The usual lease is Config.Lease.
func (p *Provider) Renew(ctx context.Context, host sandbox.Host, until time.Time) (sandbox.Host, error) {
	const op = "renew lease"
	r, err := p.live(ctx, op, host.ID)
	if err != nil {
		return sandbox.Host{}, err
	}
	// The control plane has microseconds only: not a part of one less.
	until = p.api.theirs(until).Add(time.Microsecond)
	if usual := p.api.now().Add(p.cfg.Lease); usual.After(until) {
		until = usual
	}
	var status *statusError
	switch renewed, err := p.renewedTo(ctx, r, until); {
	case errors.As(err, &status) && status.ours && status.code == "HOST_LEASE":
		return p.host(r), nil // an older control plane allows no more, and did not say so before
	case err != nil:
		return sandbox.Host{}, p.orGone(ctx, op, host.ID, err)
	default:
		return p.host(renewed), nil
	}
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
