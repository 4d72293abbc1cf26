package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Options of Enqueue. The zero value is: no key, default queue, first
// priority, now.
type Options struct {
	IdempotencyKey string    // a repeated key returns the run it named first
	Queue          string    // 1 to 64 lower-case letters and digits, parted by single '_' or '-'
	Priority       int       // 1 (first) to 4
	ScheduledAt    time.Time // not before
}

// Enqueue validates the spec and enqueues a run in the caller's transaction.
// An invalid spec is a *SpecError; a key that names a run with another spec is
// a unique violation of Postgres.
func (s *Store) Enqueue(ctx context.Context, db DB, spec Spec, o Options) (uuid.UUID, error) {
	if err := spec.Validate(); err != nil {
		return uuid.Nil, err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return uuid.Nil, err
	}
	if o.Queue == "" {
		o.Queue = "default"
	}
	if o.Priority == 0 {
		o.Priority = 1
	}
	var id uuid.UUID
	err = db.QueryRow(ctx, s.q(`SELECT executor.enqueue_run($1, $2, $3, $4, $5)`),
		string(data), orNull(o.IdempotencyKey), o.Queue, o.Priority, timeOrNull(o.ScheduledAt)).Scan(&id)
	if err != nil {
		return uuid.Nil, fmt.Errorf("enqueue: %w", err)
	}
	return id, nil
}

// Cancel asks for the end of a run and returns its status afterwards: already
// Cancelled where nothing had to be stopped. A finished run keeps its status.
func (s *Store) Cancel(ctx context.Context, db DB, id uuid.UUID) (Status, error) {
	var status *Status
	if err := db.QueryRow(ctx, s.q(`SELECT executor.cancel_run($1)`), id).Scan(&status); err != nil {
		return "", fmt.Errorf("cancel: %w", err)
	}
	if status == nil {
		return "", ErrNotFound
	}
	return *status, nil
}

// Retry reopens a failed or cancelled run at its first unfinished step, with a
// fresh retry budget, and makes its job available; a job that River has pruned
// is made anew.
func (s *Store) Retry(ctx context.Context, id uuid.UUID) error {
	return pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
		var status Status
		err := tx.QueryRow(ctx, s.q(`SELECT status FROM executor.runs WHERE id = $1 FOR UPDATE`), id).Scan(&status)
		switch {
		case err == pgx.ErrNoRows:
			return ErrNotFound
		case err != nil:
			return err
		case !Legal(status, Queued):
			return fmt.Errorf("the run has %s: %w", status, ErrNotRetryable)
		}
		if err := s.reopen(ctx, tx, id); err != nil {
			return err
		}
		return s.renewJob(ctx, tx, id)
	})
}

// reopen moves an ended run back to queued. Its unfinished steps start again
// with a fresh budget.
func (s *Store) reopen(ctx context.Context, db DB, id uuid.UUID) error {
	b := &pgx.Batch{}
	b.Queue(s.q(`
		UPDATE executor.runs
		SET status = 'queued', round = round + 1, crashes = 0, executor_id = NULL,
		    failure_code = NULL, failure_message = NULL, failed_step = NULL,
		    finished_at = NULL, cancel_requested_at = NULL
		WHERE id = $1 AND status = ANY ($2)`), id, before(Queued))
	b.Queue(s.q(`
		UPDATE executor.run_steps
		SET status = 'running', finished_at = NULL
		WHERE run_id = $1 AND status IN ('failed', 'cancelled')`), id)
	return db.SendBatch(ctx, b).Close()
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
