package sandboxtest

import (
	"context"
	"fmt"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// MarksHosts is sandbox.Marker's.
func (f *Fake) MarksHosts() {}

// Name is part of sandbox.Provider.
func (f *Fake) Name() string { return f.name }

// Create is part of sandbox.Provider.
func (f *Fake) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	f.underCreate(spec.Key, 1)
	defer f.underCreate(spec.Key, -1)
	var created sandbox.Host
	err := f.perform(ctx, Call{Op: Create, Key: spec.Key}, func() error {
		if spec.Key == "" {
			return faults.Errorf(faults.SandboxInvalid, "a host needs a key")
		}
		h := f.byKey(spec.Key)
		if h == nil {
			h = f.add(spec.Key)
		}
		created = h.Host
		return nil
	})
	return created, err
}

// Get is part of sandbox.Provider.
func (f *Fake) Get(ctx context.Context, id string) (sandbox.Host, error) {
	var found sandbox.Host
	err := f.perform(ctx, f.callOn(Get, id), func() error {
		h, err := f.find(id)
		if err == nil {
			found = h.Host
		}
		return err
	})
	return found, err
}

// Renew is part of sandbox.Renewer.
func (f *Fake) Renew(ctx context.Context, of sandbox.Host, until time.Time) (sandbox.Host, error) {
	var renewed sandbox.Host
	err := f.perform(ctx, f.callOn(Renew, of.ID), func() error {
		h, err := f.find(of.ID)
		if err != nil {
			return err
		}
		if end := f.leaseEnd(h, until); end.After(h.ExpiresAt) && !h.ExpiresAt.IsZero() {
			h.ExpiresAt = end
		}
		renewed = h.Host
		return nil
	})
	return renewed, err
}

// Delete is part of sandbox.Provider.
func (f *Fake) Delete(ctx context.Context, id string) error {
	return f.perform(ctx, f.callOn(Delete, id), func() error {
		h, err := f.find(id)
		if err != nil {
			return nil
		}
		if f.creating[h.Key] > 0 {
			f.misuse = append(f.misuse, fmt.Sprintf("%s deleted under its create", id))
			return faults.Errorf(faults.SandboxConflict, "host %s is being created", id)
		}
		f.remove(h)
		return nil
	})
}

// List is part of sandbox.Provider.
func (f *Fake) List(ctx context.Context) ([]sandbox.Host, error) {
	var hosts []sandbox.Host
	err := f.perform(ctx, Call{Op: List}, func() error {
		hosts = f.live()
		return nil
	})
	return hosts, err
}

// Dial is part of sandbox.Provider.
func (f *Fake) Dial(ctx context.Context, to sandbox.Host) (sandbox.Conn, error) {
	var opened *conn
	err := f.perform(ctx, Call{Op: Dial, Key: to.Key, HostID: to.ID}, func() error {
		h, err := f.find(to.ID)
		if err == nil {
			opened = &conn{fake: f, host: h, closed: make(chan struct{})}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// RemoveKey is part of sandbox.KeyRemover.
func (f *Fake) RemoveKey(ctx context.Context, of sandbox.Host) error {
	return f.perform(ctx, Call{Op: RemoveKey, Key: of.Key, HostID: of.ID}, func() error {
		if of.ID == "" || f.material[of.Key] == of.ID {
			delete(f.material, of.Key)
		}
		return nil
	})
}

// host is one host; everything in it is guarded by the fake's mutex.
type host struct {
	sandbox.Host
	serial    int
	deadline  time.Time // of its lease, whatever is renewed; zero: none
	prepared  bool
	files     map[string][]byte
	processes map[string]*process // by the launch's name
	gone      chan struct{}
}

func (f *Fake) add(key sandbox.Key) *host {
	f.made++
	h := &host{
		Host:   sandbox.Host{ID: fmt.Sprintf("%s-%d", f.name, f.made), Key: key, Provider: f.name, Machine: f.Machine},
		serial: f.made, files: map[string][]byte{}, processes: map[string]*process{}, gone: make(chan struct{}),
	}
	if f.MaxLease > 0 {
		h.deadline = time.Now().Add(f.MaxLease)
	}
	if f.Lease > 0 {
		h.ExpiresAt = f.leaseEnd(h, time.Time{})
	}
	f.hosts[h.ID] = h
	f.material[key] = h.ID
	return h
}

// leaseEnd is what a lease that is to last until then gets.
func (f *Fake) leaseEnd(h *host, until time.Time) time.Time {
	if usual := time.Now().Add(f.Lease); usual.After(until) {
		until = usual
	}
	if !h.deadline.IsZero() && until.After(h.deadline) {
		until = h.deadline
	}
	return until
}

// lapse removes the hosts whose lease is over.
func (f *Fake) lapse() {
	for _, h := range f.hosts {
		if !h.ExpiresAt.IsZero() && !h.ExpiresAt.After(time.Now()) {
			f.remove(h)
		}
	}
}

// leaseOver fires when the lease ends that h has now.
func (f *Fake) leaseOver(h *host) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lapse()
	if h.ExpiresAt.IsZero() {
		return nil
	}
	return time.After(time.Until(h.ExpiresAt))
}

func (f *Fake) remove(h *host) {
	delete(f.hosts, h.ID)
	close(h.gone)
}

func (f *Fake) find(id string) (*host, error) {
	if h := f.hosts[id]; h != nil {
		return h, nil
	}
	return nil, faults.Errorf(faults.SandboxNotFound, "there is no host %q", id)
}

func (f *Fake) byKey(key sandbox.Key) *host {
	for _, h := range f.hosts {
		if h.Key == key {
			return h
		}
	}
	return nil
}

func (f *Fake) callOn(op Op, id string) Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	call := Call{Op: op, HostID: id}
	if h := f.hosts[id]; h != nil {
		call.Key = h.Key
	}
	return call
}

func (f *Fake) underCreate(key sandbox.Key, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creating[key] += n
}
