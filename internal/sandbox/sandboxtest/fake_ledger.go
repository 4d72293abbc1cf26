package sandboxtest

import (
	"context"
	"fmt"
	"sync"

	"executor/internal/sandbox"
)

// Ledger is a sandbox.Ledger in memory: one claim on a book of rows.
type Ledger struct {
	book  *book
	claim int
}

var _ sandbox.Ledger = (*Ledger)(nil)

// Row is a row of the ledger, as a test sees it.
type Row struct {
	sandbox.Entry
	Closed bool
}

type book struct {
	mu    sync.Mutex
	claim int // the one that is not fenced off
	rows  []Row
	steps map[string][]error
	calls []string
}

// NewLedger returns the first claim on an empty book.
func NewLedger() *Ledger { return (&Ledger{book: &book{steps: map[string][]error{}}}).Claim() }

// Claim returns a new claim on the same book, and fences l off.
func (l *Ledger) Claim() *Ledger {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.book.claim++
	return &Ledger{book: l.book, claim: l.book.claim}
}

// On scripts the next calls of a method, such as "Created", in steps as those
// of Fake.On.
func (l *Ledger) On(method string, steps ...error) {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.book.steps[method] = append(l.book.steps[method], steps...)
}

// Calls returns the methods called so far, in order.
func (l *Ledger) Calls() []string {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	return append([]string(nil), l.book.calls...)
}

// Rows returns every row, oldest first.
func (l *Ledger) Rows() []Row {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	return append([]Row(nil), l.book.rows...)
}

// Live returns the rows that are not closed.
func (l *Ledger) Live() []sandbox.Entry {
	var live []sandbox.Entry
	for _, row := range l.Rows() {
		if !row.Closed {
			live = append(live, row.Entry)
		}
	}
	return live
}

// Reserve is part of sandbox.Ledger.
func (l *Ledger) Reserve(ctx context.Context, provider string, key sandbox.Key) (entry sandbox.Entry, existed bool, err error) {
	err = l.perform(ctx, "Reserve", func() error {
		for _, row := range l.book.rows {
			if row.Key == key && !row.Closed {
				entry, existed = row.Entry, true
				return nil
			}
		}
		entry = sandbox.Entry{ID: int64(len(l.book.rows) + 1), Key: key, Provider: provider, State: sandbox.Creating}
		l.book.rows = append(l.book.rows, Row{Entry: entry})
		return nil
	})
	return entry, existed, err
}

// Created is part of sandbox.Ledger.
func (l *Ledger) Created(ctx context.Context, id int64, host sandbox.Host) error {
	return l.perform(ctx, "Created", func() error {
		row := l.row(id)
		if row.State == sandbox.Active && row.HostID == host.ID {
			return nil
		}
		if row.Closed || row.State != sandbox.Creating {
			return fmt.Errorf("row %d cannot be created, it is %s", id, row.State)
		}
		row.HostID, row.Machine, row.State = host.ID, host.Machine, sandbox.Active
		return nil
	})
}

// Releasing is part of sandbox.Ledger.
func (l *Ledger) Releasing(ctx context.Context, id int64) error {
	return l.perform(ctx, "Releasing", func() error {
		row := l.row(id)
		if row.Closed {
			return sandbox.ErrReleased
		}
		row.State = sandbox.Releasing
		return nil
	})
}

// Released is part of sandbox.Ledger.
func (l *Ledger) Released(ctx context.Context, id int64) error {
	return l.perform(ctx, "Released", func() error {
		row := l.row(id)
		if row.State == sandbox.Active {
			return fmt.Errorf("row %d cannot be closed, it is active", id)
		}
		row.Closed = true
		return nil
	})
}

func (l *Ledger) row(id int64) *Row { return &l.book.rows[id-1] }

func (l *Ledger) perform(ctx context.Context, method string, effect func() error) error {
	return l.next(method).run(ctx, func() error {
		l.book.mu.Lock()
		defer l.book.mu.Unlock()
		if l.claim != l.book.claim {
			return sandbox.ErrFenced
		}
		return effect()
	})
}

func (l *Ledger) next(method string) step {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.book.calls = append(l.book.calls, method)
	queue := l.book.steps[method]
	if len(queue) == 0 {
		return step{}
	}
	l.book.steps[method] = queue[1:]
	return step{queue[0]}
}
