package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
)

// Timeouts are the deadlines of single operations. Start from
// DefaultTimeouts: what is zero has no deadline.
type Timeouts struct {
	Create    time.Duration
	Get       time.Duration
	Renew     time.Duration
	List      time.Duration
	Dial      time.Duration
	Prepare   time.Duration
	Delete    time.Duration
	RemoveKey time.Duration
	Close     time.Duration
	Exec      time.Duration
	Upload    time.Duration
	Download  time.Duration // opening the file and reading it
	Start     time.Duration
	Stop      time.Duration // on top of the grace
	Ledger    time.Duration // a write that must happen though its caller is cancelled
}

// DefaultTimeouts are what an executor uses when nobody says otherwise.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		Create:    5 * time.Minute,
		Get:       30 * time.Second,
		Renew:     30 * time.Second,
		List:      60 * time.Second,
		Dial:      30 * time.Second,
		Prepare:   60 * time.Second,
		Delete:    60 * time.Second,
		RemoveKey: 30 * time.Second,
		Close:     10 * time.Second,
		Exec:      5 * time.Minute,
		Upload:    5 * time.Minute,
		Download:  5 * time.Minute,
		Start:     60 * time.Second,
		Stop:      30 * time.Second,
		Ledger:    15 * time.Second,
	}
}

// Client is what all providers have in common. Its methods may be called
// concurrently, though one key belongs to one claim of one run at a time.
type Client struct {
	timeouts  Timeouts
	log       zerolog.Logger
	providers []Provider
}

// NewClient returns a client of the providers.
func NewClient(timeouts Timeouts, log zerolog.Logger, providers ...Provider) *Client {
	return &Client{timeouts: timeouts, log: log, providers: providers}
}

func (c *Client) provider(name string) (Provider, error) {
	for _, p := range c.providers {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, faults.Errorf(faults.SandboxUnsupported, "provider %q is not configured on this executor", name).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

// Acquire returns an open sandbox in which a process can be started: the live
// host of spec.Key where the ledger has one, else a new one.
//
//	no row      a new host
//	creating    a new host, or the one that an earlier Create made
//	active      that host; when it is gone, sandbox_not_found, and the next
//	            call makes a new one
//	releasing   its deletion is finished first, then a new host
//
// Failing to create, to look up, to set up or to finish the deletion because
// something did not answer is sandbox_provisioning; every other fault comes
// out as the provider raised it.
func (c *Client) Acquire(ctx context.Context, ledger Ledger, provider string, spec HostSpec) (*Sandbox, error) {
	if _, err := c.provider(provider); err != nil {
		return nil, err
	}
	entry, existed, err := c.reserve(ctx, ledger, provider, spec.Key)
	if err != nil {
		return nil, err
	}
	switch entry.State {
	case Creating:
		return c.provision(ctx, ledger, entry, existed, spec)
	case Active:
		return c.reopen(ctx, ledger, entry)
	case Releasing:
		return nil, faults.Errorf(faults.SandboxProvisioning, "the former host of %s is still being released", spec.Key)
	}
	return nil, fmt.Errorf("ledger row %d is %q, which no live row is", entry.ID, entry.State)
}

// reserve finds or writes the live row of the key. A row in releasing is
// finished first: a Create under its key could adopt the host that is to go.
func (c *Client) reserve(ctx context.Context, ledger Ledger, provider string, key Key) (entry Entry, existed bool, err error) {
	entry, existed, err = ledger.Reserve(ctx, provider, key)
	if err == nil && entry.State == Releasing {
		if err := c.Delete(ctx, ledger, entry); err != nil {
			return Entry{}, false, asProvisioning("finish the deletion of the former host", err, deletionUnfinished)
		}
		entry, existed, err = ledger.Reserve(ctx, provider, key)
	}
	if err != nil && ctx.Err() != nil {
		return Entry{}, false, &interrupted{op: "reserve host", cause: context.Cause(ctx)}
	}
	return entry, existed, err
}

// Ephemeral acquires a sandbox for fn and releases it after, also when fn
// panics, unless fn called Keep.
func (c *Client) Ephemeral(ctx context.Context, ledger Ledger, provider string, spec HostSpec, fn func(context.Context, *Sandbox) error) error {
	box, err := c.Acquire(ctx, ledger, provider, spec)
	if err != nil {
		return err
	}
	defer func() {
		c.closed(box)
		if !box.kept.Load() {
			c.Release(ctx, ledger, box.Entry())
		}
	}()
	return fn(ctx, box)
}

// List returns the hosts of every provider. A provider that fails does not
// hide the others': its error comes beside their hosts.
func (c *Client) List(ctx context.Context) ([]Host, error) {
	return c.listOf(ctx, func(Provider) bool { return true })
}

// Marked returns the hosts that are certainly ours: those of the providers
// that mark them. Errors are as in List.
func (c *Client) Marked(ctx context.Context) ([]Host, error) {
	return c.listOf(ctx, func(p Provider) bool { _, marks := p.(Marker); return marks })
}

func (c *Client) listOf(ctx context.Context, include func(Provider) bool) ([]Host, error) {
	var all []Host
	var failed []error
	for _, p := range c.providers {
		if !include(p) {
			continue
		}
		hosts, err := c.list(ctx, p)
		if err != nil {
			failed = append(failed, fmt.Errorf("provider %s: %w", p.Name(), err))
		}
		all = append(all, hosts...)
	}
	return all, errors.Join(failed...)
}

// DeleteUnknown deletes a host that Marked returned and the ledger does not
// know.
func (c *Client) DeleteUnknown(ctx context.Context, host Host) error {
	p, err := c.provider(host.Provider)
	if err != nil {
		return err
	}
	if _, marks := p.(Marker); !marks {
		return fmt.Errorf("provider %s does not mark its hosts: %s may be somebody else's", host.Provider, host.ID)
	}
	entry := Entry{Key: host.Key, Provider: host.Provider, HostID: host.ID, Machine: host.Machine}
	return errors.Join(c.deleteHost(ctx, p, entry), c.removeKey(ctx, p, entry))
}

func (c *Client) list(ctx context.Context, p Provider) ([]Host, error) {
	return call(ctx, c, "list hosts", c.timeouts.List, p.List)
}
