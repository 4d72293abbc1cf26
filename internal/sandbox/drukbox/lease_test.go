package drukbox_test

import (
	"errors"
	"net/http"
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

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never:", what)
		}
	}
}

// A step takes longer than the lease that its host began with, past renewals
// that fail and the janitor's rounds.
func TestAStepOutlivesItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	client, ledger := w.client(w.open(t, func(c *drukbox.Config) { c.Lease = 5 * time.Second }))
	box, err := client.Acquire(soon(t), ledger, "drukbox", spec)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	first := box.Host().ExpiresAt
	w.server.BreakRenewals(1)
	if _, err := box.Start(soon(t), launch, shell("while [ ! -e go ]; do sleep 0.05; done; exit 3")); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		for time.Now().Before(first.Add(time.Second)) {
			w.server.Janitor()
			time.Sleep(100 * time.Millisecond)
		}
		over <- box.Upload(soon(t), "go", 0o600, strings.NewReader(""))
	}()
	exit, err := box.Follow(soon(t), launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return nil })
	if err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	if got := box.Host().ExpiresAt; !got.After(first) || !got.Equal(w.expires(box.Host().ID)) {
		t.Errorf("the lease ends at %s, and was made until %s", got, first)
	}
	if !w.log.has("lease not renewed") {
		t.Error("the log does not say that one failed")
	}
}

// A step's time limit is longer than the usual lease: the control plane is asked
// for all of it at once.
func TestALeaseForALongStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{MaxLifetime: 3 * time.Hour})
	client, ledger := w.client(w.open(t, nil))
	box, err := client.Acquire(soon(t), ledger, "drukbox", spec)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	until := time.Now().Add(2 * time.Hour)
	if err := box.Cover(soon(t), until); err != nil || w.expires(box.Host().ID).Before(until) {
		t.Errorf("until %s: %v", w.expires(box.Host().ID), err)
	}
	if err := box.Cover(soon(t), until.Add(3*time.Hour)); !errors.Is(err, faults.SandboxUnsupported) {
		t.Errorf("got %v", err)
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
	enough, err := p.Renew(soon(t), host, time.Now().Add(2*time.Hour))
	if left := time.Until(enough.ExpiresAt); err != nil || left < 110*time.Minute || left > 130*time.Minute {
		t.Errorf("%s, %v", left, err)
	}
	short, err := p.Renew(soon(t), host, time.Now().Add(5*time.Hour))
	if left := time.Until(short.ExpiresAt); err != nil || left < 170*time.Minute || left > 180*time.Minute {
		t.Errorf("%s, %v", left, err)
	}
	same, err := p.Renew(soon(t), host, time.Now().Add(time.Minute))
	if err != nil || !same.ExpiresAt.Equal(short.ExpiresAt) {
		t.Errorf("shortened: %+v, %v", same, err)
	}
	w.server.SetStatus(host.ID, drukboxtest.Failed)
	if _, err := p.Renew(soon(t), host, time.Now().Add(time.Hour)); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("got %v", err)
	}
}

// An older control plane says where the end is by refusing to go beyond it.
func TestALeaseWithADeadlineThatIsNotSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if !strings.HasSuffix(r.URL.Path, "/renew") {
			return false
		}
		rw.WriteHeader(http.StatusBadRequest)
		_, _ = rw.Write([]byte(`{"detail": "the provider keeps no host that long", "error_code": "HOST_LEASE"}`))
		return true
	})
	if same, err := p.Renew(soon(t), host, time.Now().Add(2*time.Hour)); err != nil || !same.ExpiresAt.Equal(host.ExpiresAt) {
		t.Errorf("%+v, %v", same, err)
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
		if left := time.Until(host.ExpiresAt); left < 50*time.Minute || left > 70*time.Minute {
			t.Errorf("a lease of %s", left)
		}
		if _, err := p.Get(soon(t), host.ID); err != nil {
			t.Error("get:", err)
		}
		until := time.Now().Add(2 * time.Hour)
		longer, err := p.Renew(soon(t), host, until)
		if late := longer.ExpiresAt.Sub(until); err != nil || late < 0 || late > time.Second {
			t.Errorf("renewed until %s, %s late: %v", longer.ExpiresAt, late, err)
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
