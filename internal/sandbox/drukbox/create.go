package drukbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// idempotencyKey is what the control plane takes for one.
var idempotencyKey = regexp.MustCompile(`^[A-Za-z0-9_\-:.]{1,255}$`)

// rounds of making a host for a key. More than one is needed where the control
// plane has a host for it that is of no use.
const rounds = 3

// Create implements sandbox.Provider. The control plane answers a second
// create with the host of the first, in whatever state that is:
//
//	active, its key at hand        adopted; its lease renewed if it is short
//	active, its key lost           deleted, and made anew: the answer that
//	                               carried the key did not arrive
//	in error, or its lease over    deleted, and made anew
//	still being made               sandbox_provisioning: it cannot be deleted yet
//
// A failed create is not repeated here: its outcome is in the fault, and the
// next call finds the host by its key.
func (p *Provider) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	const op = "create host"
	if !idempotencyKey.MatchString(string(spec.Key)) {
		return sandbox.Host{}, invalid("%q cannot be an idempotency key", clip(string(spec.Key), 300))
	}
	unlock, err := p.keys.lock(ctx, spec.Key)
	if err != nil {
		return sandbox.Host{}, notStarted(err)
	}
	defer unlock()
	var why error
	for range rounds {
		r, err := p.ask(ctx, spec.Key)
		if err != nil {
			return sandbox.Host{}, err
		}
		if why = p.unfit(r); why == nil {
			return p.adopt(ctx, spec.Key, r)
		}
		p.log.Warn().Err(why).Str("key", string(spec.Key)).Str("host_id", r.ID).Msg("a host of no use is deleted, to be made anew")
		if err := errors.Join(p.Delete(ctx, r.ID), p.keys.remove(r.ID)); err != nil {
			if ctx.Err() != nil {
				return sandbox.Host{}, err
			}
			return sandbox.Host{}, faults.New(faults.SandboxProvisioning, op, errors.Join(why, err))
		}
	}
	return sandbox.Host{}, faults.New(faults.SandboxProvisioning, op, fmt.Errorf("%d hosts in a row were of no use: %w", rounds, why))
}

// ask sends one create.
func (p *Provider) ask(ctx context.Context, key sandbox.Key) (row, error) {
	const op = "create host"
	end := p.api.now().Add(p.cfg.Lease).Truncate(time.Microsecond)
	if err := p.keys.intend(key, end); err != nil {
		return row{}, notStarted(err)
	}
	began := p.api.now()
	r, err := p.api.create(ctx, string(key), p.body(end))
	if err != nil {
		p.removeFailed(ctx, began, err)
		return row{}, createFault(ctx, op, err)
	}
	if !validID(r.ID) {
		return row{}, faults.New(faults.SandboxResponse, op, errors.New("the answer names no host"))
	}
	return r, nil
}

// adopt keeps the host that an answer described. What it says is on the disk
// before anybody hears of the host: it is not said again.
func (p *Provider) adopt(ctx context.Context, key sandbox.Key, r row) (sandbox.Host, error) {
	if err := p.keys.save(r.ID, key, r.privateKey()); err != nil {
		return sandbox.Host{}, err
	}
	if err := p.keys.answered(key); err != nil {
		p.log.Warn().Err(err).Str("key", string(key)).Msg("an intent stays")
	}
	if renewed, err := p.renewed(ctx, r); err == nil {
		r = renewed
	} else {
		p.log.Warn().Err(err).Str("host_id", r.ID).Msg("lease not renewed")
	}
	return p.host(r), nil
}

// unfit says why a host cannot be used; nil: it can.
func (p *Provider) unfit(r row) error {
	switch {
	case r.Status != stateActive:
		return fmt.Errorf("it is in state %q: %s", clip(r.Status, 100), clip(r.LastError, 1000))
	case r.expired(p.api.now()):
		return fmt.Errorf("its lease ended at %s", r.ExpiresAt)
	case r.privateKey() == "" && p.identity == nil && !p.keys.has(r.ID):
		return errors.New("its private key is not here")
	}
	return nil
}

func (p *Provider) body(end time.Time) createBody {
	body := createBody{
		Provider: p.cfg.Backend, Image: p.cfg.Image, InstanceType: p.cfg.InstanceType, DiskGB: p.cfg.DiskGB,
		Env: maps.Clone(p.cfg.Env), ExpiresAt: stamp{end},
	}
	// A plain request may be given a host from a pool, whose private key
	// nobody has any more. One that asks for something is not.
	if p.identity == nil && len(body.Env) == 0 {
		body.Env = map[string]string{"EXECUTOR_HOST": "1"}
	}
	return body
}

// createFault classifies a create that failed. A conflict over the state of
// the key's host passes, and one over the key's owner does not.
func createFault(ctx context.Context, op string, err error) error {
	var status *statusError
	if errors.As(err, &status) && status.ours && status.code == "HOST_STATE" && ctx.Err() == nil {
		return faults.New(faults.SandboxProvisioning, op, err)
	}
	return fault(ctx, op, err)
}

func notStarted(err error) error {
	var f *faults.Fault
	if errors.As(err, &f) {
		f.Outcome = faults.NotStarted
	}
	return err
}
