package runs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/sandbox"
)

// hostsOf lists the hosts of a run whose process, if any, was seen to end;
// with busy also the others. A row in creating is left to the next attempt,
// which adopts what a create without an answer may have made, or the reaper.
func (s *Store) hostsOf(ctx context.Context, run uuid.UUID, busy bool) ([]sandbox.Entry, error) {
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT `+entryColumns+`
		FROM executor.sandbox_hosts AS h
		WHERE run_id = $1 AND state IN ('active', 'releasing')
		  AND ($2 OR NOT EXISTS (SELECT FROM executor.run_launches AS l WHERE l.host = h.id AND l.ended_at IS NULL))
		ORDER BY id`), run, busy)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (sandbox.Entry, error) { return scanEntry(row) })
}

// AbandonedHosts lists hosts that no run needs: the run is finished or gone,
// and has been for at least the grace. Those in creating are left for as long
// as a create may take.
func (s *Store) AbandonedHosts(ctx context.Context, machine string, grace, creating time.Duration) ([]AbandonedHost, error) {
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT h.run_id, h.epoch, h.id, h.key, h.provider, coalesce(h.host_id, ''), h.machine, h.state
		FROM executor.sandbox_hosts AS h LEFT JOIN executor.runs AS run ON run.id = h.run_id
		WHERE h.state <> 'released' AND h.machine IN ('', $1)
		  AND (run.id IS NULL OR run.finished_at < now() - $2::interval)
		  AND (h.state <> 'creating' OR h.created_at < now() - $3::interval)
		ORDER BY h.id LIMIT 100`), machine, grace, creating)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h AbandonedHost, err error) {
		e := &h.Entry
		err = row.Scan(&h.RunID, &h.Epoch, &e.ID, &e.Key, &e.Provider, &e.HostID, &e.Machine, &e.State)
		return h, err
	})
}

// UnknownHosts picks, of hosts that are certainly ours, those that no live row
// of the ledger knows.
func (s *Store) UnknownHosts(ctx context.Context, hosts []sandbox.Host) ([]sandbox.Host, error) {
	providers, ids, keys := make([]string, len(hosts)), make([]string, len(hosts)), make([]string, len(hosts))
	for i, h := range hosts {
		providers[i], ids[i], keys[i] = h.Provider, h.ID, string(h.Key)
	}
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT n FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS host (provider, id, key, n)
		WHERE NOT EXISTS (
		    SELECT FROM executor.sandbox_hosts AS h
		    WHERE h.state <> 'released' AND h.provider = host.provider AND (h.host_id = host.id OR h.host_id IS NULL AND h.key = host.key))`),
		providers, ids, keys)
	if err != nil {
		return nil, err
	}
	positions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	unknown := make([]sandbox.Host, len(positions))
	for i, n := range positions {
		unknown[i] = hosts[n-1]
	}
	return unknown, err
}

// ReaperLedger is the ledger as the reaper may write it: fenced by the run
// staying finished, or gone.
func (s *Store) ReaperLedger() *reaperLedger { return &reaperLedger{s} }

var errReaperOnlyDeletes = errors.New("the reaper makes no hosts")

// AbandonedHost is a row of the ledger whose run needs it no more.
type AbandonedHost struct {
	Entry sandbox.Entry
	RunID uuid.UUID
	Epoch int64
}

// reaperLedger is the ledger for hosts whose run has ended, or is gone. It is
// fenced by the run staying so: a run that is reopened keeps its host.
type reaperLedger struct{ store *Store }

// Reserve is sandbox.Ledger's; the reaper makes no hosts.
func (l *reaperLedger) Reserve(context.Context, string, sandbox.Key) (sandbox.Entry, bool, error) {
	return sandbox.Entry{}, false, errReaperOnlyDeletes
}

// Created is sandbox.Ledger's; the reaper makes no hosts.
func (l *reaperLedger) Created(context.Context, int64, sandbox.Host) error {
	return errReaperOnlyDeletes
}

// Releasing is sandbox.Ledger's.
func (l *reaperLedger) Releasing(ctx context.Context, id int64) error {
	var state sandbox.EntryState
	err := l.store.pool.QueryRow(ctx, l.store.q(`
		UPDATE executor.sandbox_hosts SET state = CASE WHEN state = 'released' THEN state ELSE 'releasing' END
		WHERE id = $1 AND NOT EXISTS (SELECT FROM executor.runs WHERE id = run_id AND finished_at IS NULL FOR SHARE)
		RETURNING state`), id).Scan(&state)
	if err == nil && state != sandbox.Releasing {
		return sandbox.ErrReleased
	}
	return fencedIfNone(err)
}

// Released is sandbox.Ledger's.
func (l *reaperLedger) Released(ctx context.Context, id int64) error {
	_, err := l.store.pool.Exec(ctx, l.store.q(`
		WITH closed AS (
		    UPDATE executor.sandbox_hosts SET state = 'released', released_at = coalesce(released_at, now())
		    WHERE id = $1 RETURNING id
		)
		UPDATE executor.run_launches SET ended_at = now()
		FROM closed WHERE run_launches.host = closed.id AND ended_at IS NULL`), id)
	return err
}
