package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"executor/internal/faults"
)

// A host with an ExpiresAt is there on a lease. Cover asks for one that a
// process cannot outlive, before it is started. Follow renews it meanwhile, each
// time half of what was left is over: so whoever follows keeps the host, one
// executor after the other, and a host that nobody follows goes by itself. The
// end of a lease is the provider's to know; the ledger has it as of the
// creation only.

// ErrShortLease means that the lease of a host that was there before cannot
// cover what is wanted. A fresh host's may.
var ErrShortLease = errors.New("sandbox: the host's lease cannot be renewed for long enough")

const (
	leaseTick  = 15 * time.Second       // this machine may sleep, and its timers with it
	leasePause = 100 * time.Millisecond // between tries at the very end of a lease
)

// lease is a host and when the end of its lease was last asked for.
type lease struct {
	turn chan struct{} // held by who asks: of two renewals at once the shorter might win

	mu    sync.Mutex
	host  Host
	asked time.Time // by us; zero: never
}

func newLease(host Host) *lease { return &lease{turn: make(chan struct{}, 1), host: host} }

func (l *lease) get() Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.host
}

func (l *lease) covers(until time.Time) bool {
	end := l.get().ExpiresAt
	return end.IsZero() || !end.Before(until)
}

// dueIn is how long there is until the lease should be renewed: when less is
// left of it than has passed since it was asked for. After a try that failed,
// that is half of the rest, and so on.
func (l *lease) dueIn() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := time.Until(l.host.ExpiresAt)
	if left < 0 {
		left = leaseTick
	}
	return (left - time.Since(l.asked)) / 2
}

// Cover makes sure that the host lives until then, asking for a longer lease
// where it does not, or where half of its lease is over.
//
// ErrShortLease says that it will not, and that a fresh host may. Where it is
// a fresh one, the fault is sandbox_unsupported: the provider has no host for so
// long. A renewal that fails matters only if what is left is too short.
func (s *Sandbox) Cover(ctx context.Context, until time.Time) error {
	err := s.renew(ctx, until)
	switch {
	case s.lease.covers(until):
		return nil
	case err != nil:
		return err
	case !s.fresh.Load():
		return ErrShortLease
	}
	return faults.Errorf(faults.SandboxUnsupported, "a host is needed until %s, and provider %q keeps it until %s only",
		until.UTC().Format(time.RFC3339), s.entry.Provider, s.Host().ExpiresAt.UTC().Format(time.RFC3339)).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

// renew renews the lease unless that has time and it covers until. A provider
// that cannot renew has said its last word.
func (s *Sandbox) renew(ctx context.Context, until time.Time) error {
	const op = "renew lease"
	renewer, ok := s.provider.(Renewer)
	if !ok {
		return nil
	}
	select {
	case s.lease.turn <- struct{}{}:
		defer func() { <-s.lease.turn }()
	case <-ctx.Done():
		return &interrupted{op: op, cause: context.Cause(ctx)}
	}
	if s.Host().ExpiresAt.IsZero() || s.lease.covers(until) && s.lease.dueIn() > 0 {
		return nil
	}
	asked := time.Now()
	host, err := call(ctx, s.client, op, s.client.timeouts.Renew, func(ctx context.Context) (Host, error) {
		return renewer.Renew(ctx, s.Host(), until)
	})
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	s.lease.asked = asked
	if err != nil {
		return err
	}
	s.lease.host.ExpiresAt = host.ExpiresAt
	fields(s.client.log.Debug(), s.entry).Time("expires_at", host.ExpiresAt).Msg("lease renewed")
	return nil
}

// keepLease renews the lease until ctx is done. Its error is that the host is
// gone. Any other failure is tried again, ever sooner towards the end: while
// the connection holds, a silent control plane takes no host away.
func (s *Sandbox) keepLease(ctx context.Context) error {
	if _, ok := s.provider.(Renewer); !ok {
		return nil
	}
	for ctx.Err() == nil && !s.Host().ExpiresAt.IsZero() {
		if wait := s.lease.dueIn(); wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(min(max(wait, leasePause), leaseTick)):
			}
			continue
		}
		err := s.renew(ctx, time.Now())
		if f, ok := providersFault(err); err != nil && ok {
			if f.Kind == faults.SandboxNotFound {
				return err
			}
			s.client.warning(s.entry, err).Time("expires_at", s.Host().ExpiresAt).Msg("lease not renewed")
		}
	}
	return nil
}
