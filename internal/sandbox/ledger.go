package sandbox

import (
	"context"
	"errors"
)

// Ledger records hosts before they exist and until they are certainly gone,
// so that none is leaked. One Ledger speaks for one claim of a run: every
// method is fenced by it and returns ErrFenced, having written nothing, once
// the claim is lost. Every method may be repeated, also after an answer that
// was lost.
//
//	Reserve ─► creating ──Created──► active ──Releasing──► releasing ──Released──► closed
//	               │                                          ▲
//	               ├────────────────Releasing─────────────────┘
//	               └────────────────Released, nothing was made ──────────────────► closed
//
// A key has one row that is not closed, the live one.
type Ledger interface {
	// Reserve returns the live row of the key, or writes one in state
	// creating; existed says that it was there.
	Reserve(ctx context.Context, provider string, key Key) (entry Entry, existed bool, err error)
	// Created records the provider's id and machine: creating to active.
	Created(ctx context.Context, id int64, host Host) error
	// Releasing precedes every deletion. A row that is closed already is
	// ErrReleased: the key may have a newer host by now.
	Releasing(ctx context.Context, id int64) error
	// Released closes the row: its host is deleted, or certainly never was.
	// A row that is closed already stays so: nil.
	Released(ctx context.Context, id int64) error
}

var (
	// ErrFenced means that the claim behind a Ledger is lost. Its holder
	// touches nothing any more: no run, no host, no job.
	ErrFenced = errors.New("sandbox: fenced off, the run has another claim")
	// ErrReleased means that a row of the ledger is closed.
	ErrReleased = errors.New("sandbox: the host is released already")
)

// Entry is one row of the ledger.
type Entry struct {
	ID       int64
	Key      Key
	Provider string
	HostID   string // the provider's; empty until it is known
	Machine  string // the only machine that can reach the host; empty: any
	State    EntryState
}

// EntryState is the state of a live row.
type EntryState string

const (
	Creating  EntryState = "creating"  // Create may have been called; a host may exist
	Active    EntryState = "active"    // the host exists, under HostID
	Releasing EntryState = "releasing" // the host is to be deleted and not used again
)
