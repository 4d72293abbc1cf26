package sandbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var spec = sandbox.HostSpec{Key: sandbox.StepKey("run1", "build"), RunID: "run1"}

// world is a client with one fake provider and one claim.
type world struct {
	*testing.T
	fake   *sandboxtest.Fake
	ledger *sandboxtest.Ledger
	client *sandbox.Client
}

func newWorld(t *testing.T) *world { return newWorldWith(t, sandbox.DefaultTimeouts()) }

func newWorldWith(t *testing.T, timeouts sandbox.Timeouts) *world {
	w := &world{T: t, fake: sandboxtest.NewFake(), ledger: sandboxtest.NewLedger()}
	w.client = sandbox.NewClient(timeouts, zerolog.New(zerolog.NewTestWriter(t)), w.fake)
	return w
}

func (w *world) acquire(ctx context.Context) (*sandbox.Sandbox, error) {
	return w.client.Acquire(ctx, w.ledger, "fake", spec)
}

// mustAcquire acquires a sandbox that is closed with the test.
func (w *world) mustAcquire() *sandbox.Sandbox {
	w.Helper()
	box, err := w.acquire(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = box.Close() })
	return box
}

// nothingLeft checks that no host, key material or live row remains.
func (w *world) nothingLeft() {
	w.Helper()
	if live := w.fake.Live(); len(live) > 0 {
		w.Errorf("hosts left: %v", live)
	}
	if keys := w.fake.Material(); len(keys) > 0 {
		w.Errorf("key material left: %v", keys)
	}
	if rows := w.ledger.Live(); len(rows) > 0 {
		w.Errorf("live rows left: %v", rows)
	}
}

// row checks that there is one live row, in the state, with the host id.
func (w *world) row(state sandbox.EntryState, hostID string) sandbox.Entry {
	w.Helper()
	live := w.ledger.Live()
	if len(live) != 1 || live[0].State != state || live[0].HostID != hostID {
		w.Fatalf("live rows %+v, want one in %s with host %q", live, state, hostID)
	}
	return live[0]
}

func code(err error) string { return faults.Of(err).Kind.Code() }

// isProvisioning checks that err is sandbox_provisioning once, with the
// policy of its family and the original as its cause.
func (w *world) isProvisioning(err, original error) {
	w.Helper()
	f := faults.Of(err)
	if f == nil || f.Kind != faults.SandboxProvisioning || !errors.Is(err, faults.Sandbox) {
		w.Fatalf("got %v, want sandbox_provisioning", err)
	}
	if !f.Kind.Inherits() || f.Kind.Policy().Mode != faults.Transient {
		w.Errorf("policy %v is not the inherited one", f.Kind.Policy())
	}
	if !errors.Is(f.Cause, original) && f != original {
		w.Errorf("%v does not have %v as its cause", err, original)
	}
	if inner := faults.Of(f.Cause); f.Cause != nil && inner.Kind == faults.SandboxProvisioning {
		w.Errorf("wrapped twice: %v", err)
	}
}
