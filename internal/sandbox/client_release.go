package sandbox

import (
	"context"
	"errors"

	"github.com/rs/zerolog"
)

// Release deletes the host of an entry on a path that cannot use an error: it
// goes on when ctx is cancelled, and may be repeated. What it cannot delete
// stays in the ledger for the reaper; a claim that is fenced off touches
// nothing.
func (c *Client) Release(ctx context.Context, ledger Ledger, entry Entry) {
	err := c.Delete(context.WithoutCancel(ctx), ledger, entry)
	if err != nil {
		c.warning(entry, err).Msg("host not released; it stays in the ledger")
	}
}

// Delete deletes the host of an entry, removes its key material and closes
// its row, in that order, after the row was moved to releasing. Deletion and
// key removal are each attempted though the other failed; the row is closed
// when both are done. A row that is closed already is nil.
//
// An entry without a host id is looked for by its key. Where a Create may
// still be on its way to the provider, that look can come too early: delete
// such an entry only when its maker has been dead for Timeouts.Create.
func (c *Client) Delete(ctx context.Context, ledger Ledger, entry Entry) error {
	p, err := c.provider(entry.Provider)
	if err != nil {
		return err
	}
	err = c.record(ctx, func(ctx context.Context) error { return ledger.Releasing(ctx, entry.ID) })
	if errors.Is(err, ErrReleased) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(c.deleteHost(ctx, p, entry), c.removeKey(ctx, p, entry)); err != nil {
		return err
	}
	c.event(entry).Msg("host deleted")
	return c.record(ctx, func(ctx context.Context) error { return ledger.Released(ctx, entry.ID) })
}

func (c *Client) deleteHost(ctx context.Context, p Provider, entry Entry) error {
	if entry.HostID != "" {
		return c.deleteID(ctx, p, entry.HostID)
	}
	hosts, err := c.list(ctx, p)
	if err != nil {
		return err
	}
	var failed []error
	for _, host := range hosts {
		if host.Key == entry.Key {
			failed = append(failed, c.deleteID(ctx, p, host.ID))
		}
	}
	return errors.Join(failed...)
}

func (c *Client) deleteID(ctx context.Context, p Provider, id string) error {
	return c.do(ctx, "delete host", c.timeouts.Delete, func(ctx context.Context) error {
		return p.Delete(ctx, id)
	})
}

func (c *Client) removeKey(ctx context.Context, p Provider, entry Entry) error {
	remover, ok := p.(KeyRemover)
	if !ok {
		return nil
	}
	host := Host{ID: entry.HostID, Key: entry.Key, Provider: entry.Provider, Machine: entry.Machine}
	return c.do(ctx, "remove key", c.timeouts.RemoveKey, func(ctx context.Context) error {
		return remover.RemoveKey(ctx, host)
	})
}

// closeRow closes the row of a host that certainly was not made.
func (c *Client) closeRow(ctx context.Context, ledger Ledger, entry Entry) {
	err := c.record(ctx, func(ctx context.Context) error { return ledger.Released(ctx, entry.ID) })
	if err != nil {
		c.warning(entry, err).Msg("row of a host that was never made stays open")
	}
}

// record makes a write that must not be lost to a cancellation: the world has
// changed already, or is about to.
func (c *Client) record(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := withLimit(context.WithoutCancel(ctx), "write to the ledger", c.timeouts.Ledger)
	defer cancel()
	return write(ctx)
}

func (c *Client) closed(box *Sandbox) {
	if err := box.Close(); err != nil {
		c.warning(box.entry, err).Msg("connection not closed properly")
	}
}

func (c *Client) event(entry Entry) *zerolog.Event { return fields(c.log.Info(), entry) }

func (c *Client) warning(entry Entry, err error) *zerolog.Event {
	return fields(c.log.Warn().Err(err), entry)
}

func fields(e *zerolog.Event, entry Entry) *zerolog.Event {
	return e.Str("provider", entry.Provider).Str("key", string(entry.Key)).Str("host_id", entry.HostID)
}
