package sandbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// The row is there before the host, and active before anything is dialled.
func TestLedgerIsAheadOfTheProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	expect := func(state sandbox.EntryState, hostID string) error {
		return sandboxtest.Do(func(context.Context) error { w.row(state, hostID); return nil })
	}
	w.fake.OnCreate(expect(sandbox.Creating, ""))
	w.fake.OnDial(expect(sandbox.Active, "fake-1"))
	w.fake.OnDelete(expect(sandbox.Releasing, "fake-1"))
	w.fake.On(sandboxtest.RemoveKey, expect(sandbox.Releasing, "fake-1"))
	box := w.mustAcquire()
	w.client.Release(t.Context(), w.ledger, box.Entry())
	w.nothingLeft()
}

func TestSameKeyOnEveryAttempt(t *testing.T) {
	t.Parallel()
	for _, key := range []sandbox.Key{sandbox.StepKey("run1", "build"), sandbox.MemberKey("run1", "checks", "lint"), sandbox.KeptKey("run1")} {
		w := newWorld(t)
		down := faults.New(faults.SandboxUnavailable, "x", nil)
		w.fake.OnCreate(down, sandboxtest.Lost(down), nil, nil)
		w.fake.OnDial(down)
		for range 4 {
			_ = w.client.Ephemeral(t.Context(), w.ledger, "fake", sandbox.HostSpec{Key: key, RunID: "run1"},
				func(context.Context, *sandbox.Sandbox) error { return nil })
		}
		creates := w.fake.Calls(sandboxtest.Create)
		if len(creates) != 4 {
			t.Errorf("%d creates", len(creates))
		}
		for _, call := range creates {
			if call.Key != key {
				t.Errorf("key %s, want %s", call.Key, key)
			}
		}
		w.nothingLeft()
	}
}

func TestAcquireAttachesToTheLiveHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.mustAcquire()
	second := w.mustAcquire()
	if first.Host() != second.Host() || first.Entry() != second.Entry() {
		t.Errorf("%v and %v", first.Entry(), second.Entry())
	}
	// The maker may have died between recording and preparing it.
	if n := len(w.fake.Calls(sandboxtest.Prepare)); n != 2 {
		t.Errorf("prepared %d times", n)
	}
}

func TestAttachOnlyConnects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entry := w.mustAcquire().Entry()
	before := len(w.fake.Ops())
	box, err := w.client.Attach(t.Context(), w.ledger, entry)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	if got := w.fake.Ops()[before:]; !slices.Equal(got, []sandboxtest.Op{sandboxtest.Get, sandboxtest.Dial}) {
		t.Errorf("calls %v", got)
	}
}

func TestAttachToAHostThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustAcquire()
	w.fake.Vanish(spec.Key)
	if _, err := w.acquire(t.Context()); code(err) != "sandbox_not_found" {
		t.Fatalf("got %v", err)
	}
	w.nothingLeft()
	if id := w.mustAcquire().Host().ID; id != "fake-2" {
		t.Errorf("the next attempt got %s", id)
	}
}

// A look-up that is wrong about a host's absence must not leak the host.
func TestAttachDeletesWhatWasNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustAcquire()
	w.fake.OnGet(faults.Errorf(faults.SandboxNotFound, "not yet visible"))
	if _, err := w.acquire(t.Context()); code(err) != "sandbox_not_found" {
		t.Fatalf("got %v", err)
	}
	w.nothingLeft()
}

func TestAttachToAnEntryWithoutAHost(t *testing.T) {
	t.Parallel()
	for _, state := range []sandbox.EntryState{sandbox.Creating, sandbox.Releasing} {
		w := newWorld(t)
		entry := sandbox.Entry{ID: 1, Key: spec.Key, Provider: "fake", State: state}
		if _, err := w.client.Attach(t.Context(), w.ledger, entry); code(err) != "sandbox_not_found" {
			t.Errorf("%s: got %v", state, err)
		}
		if len(w.fake.Calls()) > 0 || len(w.ledger.Calls()) > 0 {
			t.Errorf("%s: something was touched", state)
		}
	}
}

// A host that was found unfit is deleted before its key is used again.
func TestReleasingIsFinishedFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault *faults.Fault
		code  string
	}{
		"unavailable":          {faults.New(faults.SandboxUnavailable, "delete", nil), "sandbox_provisioning"},
		"state change running": {faults.New(faults.SandboxConflict, "delete", nil), "sandbox_provisioning"},
		"denied":               {faults.New(faults.SandboxDenied, "delete", nil), "sandbox_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.OnPrepare(faults.New(faults.SandboxLost, "prepare", nil))
			w.fake.OnDelete(c.fault, c.fault)
			if _, err := w.acquire(t.Context()); code(err) != "sandbox_provisioning" {
				t.Fatal(err)
			}
			w.row(sandbox.Releasing, "fake-1")
			_, err := w.acquire(t.Context())
			if code(err) != c.code || !errors.Is(err, c.fault) {
				t.Errorf("got %v, want %s", err, c.code)
			}
			if n := len(w.fake.Calls(sandboxtest.Create)); n != 1 {
				t.Fatalf("%d creates while the bad host lives", n)
			}
			if id := w.mustAcquire().Host().ID; id != "fake-2" {
				t.Errorf("got the bad host back: %s", id)
			}
			if live := w.fake.Live(); len(live) != 1 {
				t.Errorf("live %v", live)
			}
		})
	}
}

func TestFencedClaimTouchesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stale := w.ledger
	entry := w.mustAcquire().Entry()
	w.ledger = stale.Claim()
	before := len(w.fake.Ops())

	if _, err := w.client.Acquire(t.Context(), stale, "fake", spec); !errors.Is(err, sandbox.ErrFenced) {
		t.Errorf("acquire: %v", err)
	}
	w.client.Release(t.Context(), stale, entry)
	if err := w.client.Delete(t.Context(), stale, entry); !errors.Is(err, sandbox.ErrFenced) {
		t.Errorf("delete: %v", err)
	}
	if got := w.fake.Ops()[before:]; len(got) > 0 {
		t.Errorf("touched: %v", got)
	}
	w.row(sandbox.Active, "fake-1")
}

// A claim that is lost during Create leaves the host to its successor.
func TestFencedDuringCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stale := w.ledger
	w.fake.OnCreate(sandboxtest.Do(func(context.Context) error { w.ledger = stale.Claim(); return nil }))
	if _, err := w.client.Acquire(t.Context(), stale, "fake", spec); !errors.Is(err, sandbox.ErrFenced) {
		t.Fatal(err)
	}
	if got := w.fake.Ops(); !slices.Equal(got, []sandboxtest.Op{sandboxtest.Create}) {
		t.Errorf("touched: %v", got)
	}
	if id := w.mustAcquire().Host().ID; id != "fake-1" {
		t.Errorf("the successor got %s", id)
	}
}

func TestDeleteTwiceDoesNotTouchTheNextHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entry := w.mustAcquire().Entry()
	w.client.Release(t.Context(), w.ledger, entry)
	w.nothingLeft()
	w.mustAcquire()
	entry.HostID = "" // even where only the key is known
	if err := w.client.Delete(t.Context(), w.ledger, entry); err != nil {
		t.Error(err)
	}
	w.row(sandbox.Active, "fake-2")
	if len(w.fake.Live()) != 1 {
		t.Error("the next host is gone")
	}
}

func TestDeleteFindsAHostByItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.OnCreate(sandboxtest.Lost(errors.New("executor died here")))
	_, _ = w.acquire(t.Context())
	entry := w.row(sandbox.Creating, "")
	down := faults.New(faults.SandboxUnavailable, "list", nil)
	w.fake.On(sandboxtest.List, down)
	if err := w.client.Delete(t.Context(), w.ledger, entry); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
	if err := w.client.Delete(t.Context(), w.ledger, w.row(sandbox.Releasing, "")); err != nil {
		t.Error(err)
	}
	w.nothingLeft()
}

func TestEphemeral(t *testing.T) {
	t.Parallel()
	failed := errors.New("the step failed")
	for name, c := range map[string]struct {
		fn   func(context.Context, *sandbox.Sandbox) error
		err  error
		kept bool
	}{
		"success": {fn: func(context.Context, *sandbox.Sandbox) error { return nil }},
		"failure": {fn: func(context.Context, *sandbox.Sandbox) error { return failed }, err: failed},
		"panic":   {fn: func(context.Context, *sandbox.Sandbox) error { panic(failed) }, err: failed},
		"keep":    {fn: func(_ context.Context, box *sandbox.Sandbox) error { box.Keep(); return failed }, err: failed, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			err := func() (err error) {
				defer func() {
					if v := recover(); v != nil {
						err = v.(error)
					}
				}()
				return w.client.Ephemeral(ctx, w.ledger, "fake", spec, func(ctx context.Context, box *sandbox.Sandbox) error {
					cancel() // a release must not depend on it
					return c.fn(ctx, box)
				})
			}()
			if !errors.Is(err, c.err) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			if n := len(w.fake.Calls(sandboxtest.Close)); n != 1 {
				t.Errorf("closed %d times", n)
			}
			if c.kept {
				w.row(sandbox.Active, "fake-1")
				return
			}
			w.nothingLeft()
			if n := len(w.fake.Calls(sandboxtest.Delete)); n != 1 {
				t.Errorf("deleted %d times", n)
			}
		})
	}
}

func TestListKeepsWhatOtherProvidersSay(t *testing.T) {
	t.Parallel()
	one, two, three := sandboxtest.NewNamedFake("one"), sandboxtest.NewNamedFake("two"), sandboxtest.NewNamedFake("three")
	client := sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), one, two, three)
	for _, name := range []string{"one", "three"} {
		box, err := client.Acquire(t.Context(), sandboxtest.NewLedger(), name, spec)
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
	}
	down := faults.New(faults.SandboxUnavailable, "list", nil)
	two.On(sandboxtest.List, down)
	hosts, err := client.List(t.Context())
	if !errors.Is(err, down) || len(hosts) != 2 || hosts[0].Provider != "one" || hosts[1].Provider != "three" {
		t.Errorf("got %v, %v", hosts, err)
	}
}

func TestUnknownProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.client.Acquire(t.Context(), w.ledger, "other", spec); code(err) != "sandbox_unsupported" {
		t.Errorf("got %v", err)
	}
	if len(w.ledger.Rows()) > 0 {
		t.Error("a row was written")
	}
}
