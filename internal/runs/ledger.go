package runs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/sandbox"
)

// hostLedger is the ledger of hosts as one claim may write it. A claim stays
// good for it after the run has ended, until somebody claims the run anew: the
// hosts are released then.
type hostLedger struct {
	store   *Store
	run     uuid.UUID
	epoch   int64
	machine string
}

// Ledger is the ledger of hosts, fenced by the claim. machine is the
// executor's: until the provider says better, only it may look for the host.
func (s *Store) Ledger(c *Claim, machine string) sandbox.Ledger {
	return &hostLedger{s, c.RunID, c.Epoch, machine}
}

const entryColumns = `id, key, provider, coalesce(host_id, ''), machine, state`

func scanEntry(row pgx.Row) (e sandbox.Entry, err error) {
	err = row.Scan(&e.ID, &e.Key, &e.Provider, &e.HostID, &e.Machine, &e.State)
	return e, err
}

// Reserve is sandbox.Ledger's.
func (l *hostLedger) Reserve(ctx context.Context, provider string, key sandbox.Key) (e sandbox.Entry, existed bool, err error) {
	err = l.store.persist(ctx, "reserve host", func(ctx context.Context) error {
		e, err = scanEntry(l.store.pool.QueryRow(ctx, l.store.q(`
			WITH run AS (
			    SELECT id FROM executor.runs WHERE id = $1 AND epoch = $2 FOR SHARE
			)
			INSERT INTO executor.sandbox_hosts (run_id, epoch, key, provider, machine)
			SELECT id, $2, $3, $4, $5 FROM run
			ON CONFLICT (key) WHERE state <> 'released' DO NOTHING
			RETURNING `+entryColumns), l.run, l.epoch, key, provider, l.machine))
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		existed = true
		e, err = scanEntry(l.store.pool.QueryRow(ctx, l.store.q(`
			UPDATE executor.sandbox_hosts SET epoch = $2
			WHERE key = $3 AND run_id = $1 AND state <> 'released'
			  AND EXISTS (SELECT FROM executor.runs WHERE id = $1 AND epoch = $2 FOR SHARE)
			RETURNING `+entryColumns), l.run, l.epoch, key))
		return fencedIfNone(err)
	})
	return e, existed, err
}

// Created is sandbox.Ledger's. Where a lease is renewed later, only the provider
// knows its end.
func (l *hostLedger) Created(ctx context.Context, id int64, host sandbox.Host) error {
	var expires *time.Time
	if !host.ExpiresAt.IsZero() {
		expires = &host.ExpiresAt
	}
	return l.move(ctx, id, "record host", `
		UPDATE executor.sandbox_hosts SET state = 'active', host_id = $3, machine = $4, expires_at = $5, epoch = $2
		WHERE id = $1 AND state IN ('creating', 'active')
		  AND EXISTS (SELECT FROM executor.runs WHERE id = run_id AND runs.epoch = $2 FOR SHARE)
		RETURNING id`, host.ID, host.Machine, expires)
}

// Releasing is sandbox.Ledger's.
func (l *hostLedger) Releasing(ctx context.Context, id int64) error {
	var state sandbox.EntryState
	err := l.store.persist(ctx, "release host", func(ctx context.Context) error {
		return fencedIfNone(l.store.pool.QueryRow(ctx, l.store.q(`
			UPDATE executor.sandbox_hosts SET state = CASE WHEN state = 'released' THEN state ELSE 'releasing' END
			WHERE id = $1 AND EXISTS (SELECT FROM executor.runs WHERE id = run_id AND runs.epoch = $2 FOR SHARE)
			RETURNING state`), id, l.epoch).Scan(&state))
	})
	if err == nil && state != sandbox.Releasing {
		return sandbox.ErrReleased
	}
	return err
}

// Released is sandbox.Ledger's. The processes of a host end with it.
func (l *hostLedger) Released(ctx context.Context, id int64) error {
	return l.move(ctx, id, "close host", `
		WITH closed AS (
		    UPDATE executor.sandbox_hosts SET state = 'released', released_at = coalesce(released_at, now())
		    WHERE id = $1 AND EXISTS (SELECT FROM executor.runs WHERE id = run_id AND runs.epoch = $2 FOR SHARE)
		    RETURNING id
		), ended AS (
		    UPDATE executor.run_launches SET ended_at = now()
		    FROM closed WHERE run_launches.host = closed.id AND ended_at IS NULL
		)
		SELECT id FROM closed`)
}

// move carries out a statement about row id, fenced by the epoch: $1 and $2.
func (l *hostLedger) move(ctx context.Context, id int64, what, sql string, args ...any) error {
	return l.store.persist(ctx, what, func(ctx context.Context) error {
		var same int64
		return fencedIfNone(l.store.pool.QueryRow(ctx, l.store.q(sql), append([]any{id, l.epoch}, args...)...).Scan(&same))
	})
}

func fencedIfNone(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrFenced
	}
	return err
}
