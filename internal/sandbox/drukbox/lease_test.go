package drukbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
)

func (w *world) expires(id string) time.Time {
	for _, r := range w.server.Rows() {
		if r.ID == id {
			return r.Expires
		}
	}
	return time.Time{}
}

func (w *world) renewals() (n int) {
	for _, r := range w.server.Requests() {
		if strings.HasSuffix(r, "/renew") {
			n++
		}
	}
	return n
}

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never:", what)
		}
	}
}

// An open connection keeps a host for longer than its lease.
func TestTheLeaseIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, func(c *drukbox.Config) { c.Lease = 5 * time.Second })
	host := w.create(p)
	conn := w.works(p, host)
	eventually(t, "a second renewal", func() bool { return w.renewals() >= 2 })
	w.server.Janitor()
	if exit, err := conn.Exec(soon(t), shell("true"), sandbox.Stdio{}); err != nil || !exit.Success() {
		t.Errorf("exec: %+v, %v", exit, err)
	}
	got, err := p.Get(soon(t), host.ID)
	if err != nil || !got.ExpiresAt.After(host.ExpiresAt) || !got.ExpiresAt.Equal(w.expires(host.ID)) {
		t.Errorf("%+v, %v; it was made until %s", got, err, host.ExpiresAt)
	}
	_ = conn.Close()
	closed := w.renewals()
	time.Sleep(3 * time.Second) // more than half a lease
	if n := w.renewals(); n != closed {
		t.Errorf("%d renewals after the connection was closed", n-closed)
	}
}

// Failures of renewals are gone on after; refusals are not.
func TestARenewalThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, func(c *drukbox.Config) { c.Lease = 5 * time.Second })
	host := w.create(p)
	w.server.BreakRenewals(3)
	w.works(p, host)
	eventually(t, "a renewal", func() bool { return w.expires(host.ID).After(host.ExpiresAt) })
	if !w.log.has("lease not renewed") {
		t.Error("the log does not say that some failed")
	}
}

// A provider's hosts may have an end that no renewal goes beyond.
func TestALeaseWithADeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{MaxLifetime: 3 * time.Hour})
	p := w.open(t, nil)
	host := w.create(p)
	if left := time.Until(host.ExpiresAt); left < 50*time.Minute || left > 70*time.Minute {
		t.Errorf("a lease of %s", left)
	}
	enough, err := p.Extend(soon(t), host, time.Now().Add(2*time.Hour))
	if left := time.Until(enough.ExpiresAt); err != nil || left < 110*time.Minute || left > 130*time.Minute {
		t.Errorf("%s, %v", left, err)
	}
	short, err := p.Extend(soon(t), host, time.Now().Add(5*time.Hour))
	if left := time.Until(short.ExpiresAt); err != nil || left < 170*time.Minute || left > 180*time.Minute {
		t.Errorf("%s, %v", left, err)
	}
	same, err := p.Extend(soon(t), host, time.Now().Add(time.Minute))
	if err != nil || !same.ExpiresAt.Equal(short.ExpiresAt) {
		t.Errorf("shortened: %+v, %v", same, err)
	}
	w.server.SetStatus(host.ID, drukboxtest.Failed)
	if _, err := p.Extend(soon(t), host, time.Now().Add(time.Hour)); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("got %v", err)
	}
}

// Leases end by the control plane's clock.
func TestTheOtherClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		w := newWorld(t, drukboxtest.Options{})
		w.server.SetAhead(ahead)
		p := w.open(t, nil)
		if _, err := p.List(soon(t)); err != nil { // which tells the time
			t.Fatal(err)
		}
		if got := time.Duration(p.ClockAhead()); (got - ahead).Abs() > 3*time.Second {
			t.Errorf("the clock is %s ahead, want %s", got, ahead)
		}
		host := w.create(p)
		if left := time.Until(host.ExpiresAt) - ahead; left < 50*time.Minute || left > 70*time.Minute {
			t.Errorf("a lease of %s", left)
		}
		if _, err := p.Get(soon(t), host.ID); err != nil {
			t.Error("get:", err)
		}
	}
}

func TestEveryHostHasALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	host := w.create(w.open(t, func(c *drukbox.Config) { c.Lease = 0 }))
	if left := time.Until(host.ExpiresAt); left < drukbox.DefaultLease-time.Minute || left > drukbox.DefaultLease {
		t.Errorf("a lease of %s", left)
	}
	if slices.Contains(w.server.Requests(), "GET /hosts") {
		t.Error("a create needs no list")
	}
}
