package sandbox

import (
	"context"
	"time"

	"executor/internal/faults"
)

// Attach connects to the host of an active entry. It starts and installs
// nothing: it is for following or stopping a process that is there.
//
// A host that is gone is sandbox_not_found; its row is closed, and its
// deletion asked for once more in case the look-up was wrong. An entry in
// another state has no host to attach to, which is sandbox_not_found too, and
// nothing is touched.
func (c *Client) Attach(ctx context.Context, ledger Ledger, entry Entry) (*Sandbox, error) {
	const op = "look up host"
	p, err := c.provider(entry.Provider)
	if err != nil {
		return nil, err
	}
	if entry.State != Active {
		return nil, faults.Errorf(faults.SandboxNotFound, "the host of %s is %s", entry.Key, entry.State)
	}
	host, err := call(ctx, c, op, c.timeouts.Get, func(ctx context.Context) (Host, error) {
		return p.Get(ctx, entry.HostID)
	})
	if err != nil {
		if f, ok := providersFault(err); ok && f.Kind == faults.SandboxNotFound {
			c.Release(ctx, ledger, entry)
		}
		return nil, asProvisioning(op, err, lookUpUnanswered)
	}
	return c.open(ctx, p, entry, host)
}

// reopen attaches to a host that will be used again. It is prepared once more
// because its maker may have died between recording it and preparing it.
func (c *Client) reopen(ctx context.Context, ledger Ledger, entry Entry) (*Sandbox, error) {
	box, err := c.Attach(ctx, ledger, entry)
	if err != nil {
		return nil, err
	}
	if err := box.prepare(ctx); err != nil {
		c.closed(box)
		return nil, err
	}
	return box, nil
}

// provision makes the host of an entry in creating, records it, connects and
// prepares it. The row is the only trace of what a failed Create may have
// left, so it is closed on proof only:
//
//	Create failed, outcome not_started, the row is this call's own   closed
//	Create failed otherwise, or was cancelled                        stays creating: the next
//	                  Create under the key adopts what there is, or the reaper looks for it
//	anything failed after Create                                     releasing, then closed once the
//	                  host and its key material are gone; else the next acquire or the reaper goes on
//	fenced off                                                       untouched, and so is the host
//
// An older row stays even on not_started: that speaks of this Create, and an
// earlier one may have made a host. A host that Create adopted counts as
// fresh: nothing was started in it, as its id was never recorded.
func (c *Client) provision(ctx context.Context, ledger Ledger, entry Entry, existed bool, spec HostSpec) (*Sandbox, error) {
	const op = "create host"
	p, err := c.provider(entry.Provider)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	host, err := call(ctx, c, op, c.timeouts.Create, func(ctx context.Context) (Host, error) {
		return p.Create(ctx, spec)
	})
	if err != nil {
		if f, ok := providersFault(err); ok && f.Outcome == faults.NotStarted && !existed {
			c.closeRow(ctx, ledger, entry)
		}
		return nil, asProvisioning(op, err, createUnanswered)
	}
	entry.HostID, entry.Machine, entry.State = host.ID, host.Machine, Active
	c.event(entry).Msg("host created")

	box, err := c.setUp(ctx, ledger, p, entry, host)
	if err != nil {
		c.Release(ctx, ledger, entry)
		return nil, err
	}
	if !existed {
		box.fresh.Store(true)
		box.lease.asked = asked
	}
	return box, nil
}

// setUp records, dials and prepares a fresh host. The id is recorded even
// when ctx is done by now, since the host exists.
func (c *Client) setUp(ctx context.Context, ledger Ledger, p Provider, entry Entry, host Host) (*Sandbox, error) {
	err := c.record(ctx, func(ctx context.Context) error { return ledger.Created(ctx, entry.ID, host) })
	if err != nil {
		return nil, err
	}
	box, err := c.open(ctx, p, entry, host)
	if err != nil {
		return nil, asProvisioning("dial fresh host", err, setUpUnanswered)
	}
	if err := box.prepare(ctx); err != nil {
		c.closed(box)
		return nil, asProvisioning("prepare fresh host", err, setUpUnanswered)
	}
	return box, nil
}
