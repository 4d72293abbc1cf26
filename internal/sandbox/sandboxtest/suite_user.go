package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// user is a run that uses a host as runs do, through a Client. What it does is
// interrupted; the box beside it sees what is left.
type user struct {
	*box
	ledger  *Ledger
	entry   sandbox.Entry
	fresh   *Ledger          // of hosts that an operation makes for itself
	client  *sandbox.Client  // of the trial that goes on
	sandbox *sandbox.Sandbox // opened by it
	begin   func()           // the operation itself begins now
	n       int              // of launches so far
	running int              // processes in the host when it began
}

// newUser acquires a host that goes with the test.
func newUser(t *testing.T, s Subject, p sandbox.Provider) *user {
	t.Helper()
	u := &user{box: &box{T: t, subject: s, provider: p}, ledger: NewLedger()}
	u.acquire()
	u.dial(p)
	u.settled()
	return u
}

// another is the same run, which does something else at the same time.
func (u *user) another(n int) *user {
	box := *u.box
	box.lock = fmt.Sprint("held", n)
	box.subject.Processes = nil // they are everybody's
	return &user{box: &box, ledger: u.ledger, entry: u.entry, n: 100 * n}
}

// anew is for a host that an operation makes for itself.
func (u *user) anew() {
	ledger := NewLedger()
	u.fresh = ledger
	u.Cleanup(func() { u.drop(ledger) })
}

// acquire makes a host, and nobody interrupts it.
func (u *user) acquire() {
	u.Helper()
	u.ledger = NewLedger()
	box := u.acquired(u.ledger, newKey())
	_ = box.Close()
	u.entry, u.host = box.Entry(), box.Host()
	ledger := u.ledger
	u.Cleanup(func() { u.drop(ledger) })
}

func (u *user) acquired(ledger *Ledger, key sandbox.Key) *sandbox.Sandbox {
	u.Helper()
	box, err := patient(u.provider).Acquire(u.soon(), ledger, u.provider.Name(), sandbox.HostSpec{Key: key, RunID: u.Name()})
	if err != nil {
		u.Fatal("acquire:", err)
	}
	return box
}

func patient(p sandbox.Provider) *sandbox.Client {
	return sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), p)
}

// drop deletes what a ledger knows of, and checks that nothing of it is left.
func (u *user) drop(ledger *Ledger) {
	u.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, entry := range ledger.Live() {
		if err := patient(u.provider).Delete(ctx, ledger, entry); err != nil {
			u.Errorf("delete a host that is %s: %v", entry.State, err)
		}
	}
	hosts, err := u.provider.List(ctx)
	if err != nil {
		u.Error("list:", err)
	}
	for _, row := range ledger.Rows() {
		for _, h := range hosts {
			if h.Key == row.Key || h.ID == row.HostID {
				u.Errorf("a host is left: %+v", h)
			}
		}
	}
}

// open connects through the client of the trial.
func (u *user) open() *sandbox.Sandbox {
	u.Helper()
	if u.sandbox != nil {
		_ = u.sandbox.Close()
	}
	var err error
	if u.sandbox, err = u.client.Attach(u.soon(), u.ledger, u.entry); err != nil {
		u.Fatal("attach:", err)
	}
	u.Cleanup(func() { _ = u.sandbox.Close() })
	return u.sandbox
}

// try does an operation once, within a limit if that is not 0. begun is called
// when the operation itself begins.
func (u *user) try(ctx context.Context, op operation, limit time.Duration, begun func()) error {
	timeouts := sandbox.DefaultTimeouts()
	if limit != 0 {
		*op.limit(&timeouts) = limit
	}
	gate := &gate{Provider: u.provider, at: op.name, enter: sync.OnceFunc(begun)}
	u.begin = gate.enter
	u.client = sandbox.NewClient(timeouts, zerolog.Nop(), gate)
	return op.do(ctx, u)
}

// timed does an operation without interrupting it, and says how long it took.
func (u *user) timed(op operation) time.Duration {
	u.Helper()
	began := time.Now()
	if err := u.try(u.soon(), op, 0, func() { began = time.Now() }); err != nil {
		u.Fatalf("%s: %v", op.name, err)
	}
	took := time.Since(began)
	u.check(op)
	return took
}

// cancelled does an operation that is cancelled some time after it began. It
// may have been faster, unless it never ends.
func (u *user) cancelled(op operation, after time.Duration) {
	u.Helper()
	ctx, cancel := context.WithCancelCause(u.Context())
	defer cancel(nil)
	var began time.Time
	err := u.try(ctx, op, 0, func() {
		began = time.Now()
		if after == 0 {
			cancel(errEnough)
			return
		}
		time.AfterFunc(after, func() { cancel(errEnough) })
	})
	u.inTime(op, "it was cancelled", began, after)
	if err != nil && (!errors.Is(err, errEnough) || faults.Classified(err)) || err == nil && op.endless {
		u.Errorf("%s, cancelled after %s: %v", op.name, after, err)
	}
	u.check(op)
}

// late does an operation that has a deadline. It may have been faster, unless
// it never ends.
func (u *user) late(op operation, limit time.Duration) {
	u.Helper()
	began := time.Now()
	err := u.try(u.soon(), op, limit, func() { began = time.Now() })
	u.inTime(op, "its deadline", began, limit)
	if err != nil && !errors.Is(err, faults.SandboxTimeout) || err == nil && op.endless {
		u.Errorf("%s within %s: %v", op.name, limit, err)
	}
	u.check(op)
}

// check looks at what an operation has left, and at what it should not have
// touched.
func (u *user) check(op operation) {
	u.Helper()
	if op.after != nil {
		op.after(u)
	}
}

func (u *user) inTime(op operation, what string, began time.Time, after time.Duration) {
	u.Helper()
	if began.IsZero() {
		u.Errorf("%s was not reached", op.name)
	} else if took := time.Since(began) - after; took > prompt {
		u.Errorf("%s took %s beyond %s", op.name, took, what)
	}
}
