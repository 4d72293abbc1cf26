package runs

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
)

// Succeed ends the run and its job.
func (s *Store) Succeed(ctx context.Context, c *Claim) error {
	return s.end(ctx, c, Succeeded, func(b *pgx.Batch) error {
		s.queueEnd(b, c, Succeeded, nil, nil, nil)
		return nil
	})
}

// Fail ends the run with the fault's code, and its job with an error that
// begins with it.
func (s *Store) Fail(ctx context.Context, c *Claim, f *StepError) error {
	return s.end(ctx, c, Failed, func(b *pgx.Batch) error {
		if err := s.queueAttemptFailed(b, c, f, time.Time{}); err != nil {
			return err
		}
		s.queueAttemptsClosed(b, c, "failed", "interrupted")
		code, message := f.Fault().Kind.Code(), f.Message()
		s.queueEnd(b, c, Failed, &code, &message, orNull(f.place.step))
		return nil
	})
}

// Cancelled ends the run as cancelled. Its processes have been seen stopped,
// or their hosts deleted.
func (s *Store) Cancelled(ctx context.Context, c *Claim) error {
	return s.end(ctx, c, Cancelled, func(b *pgx.Batch) error {
		s.queueAttemptsClosed(b, c, "cancelled", "cancelled")
		s.queueEnd(b, c, Cancelled, nil, nil, nil)
		return nil
	})
}

// BackOff ends the attempt and lets the run wait until retryAt. The worker
// must then snooze the job until the same time. A run whose end was asked for
// does not wait: ErrCancelled.
func (s *Store) BackOff(ctx context.Context, c *Claim, f *StepError, retryAt time.Time) error {
	return s.end(ctx, c, BackingOff, func(b *pgx.Batch) error {
		s.queueUnlessCancelled(b, c)
		if err := s.queueAttemptFailed(b, c, f, retryAt); err != nil {
			return err
		}
		s.queueBackOff(b, c, f.Fault().Kind.Code(), f.attempt, retryAt)
		return nil
	})
}

// PutOff lets a run wait whose cancellation could not be carried out yet: a
// process could not be stopped, nor its host deleted.
func (s *Store) PutOff(ctx context.Context, c *Claim, code *faults.Kind, retryAt time.Time) error {
	return s.end(ctx, c, BackingOff, func(b *pgx.Batch) error {
		s.queueBackOff(b, c, code.Code(), 0, retryAt)
		return nil
	})
}

// HandBack gives the run's job back to the queue under a new id, its attempt
// unspent, for another executor to continue the run. The processes go on. A run
// whose end was asked for is not handed on: ErrCancelled.
func (s *Store) HandBack(ctx context.Context, c *Claim, reason string) error {
	return s.persist(ctx, "hand back", func(ctx context.Context) error {
		return pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
			var job int64
			err := tx.QueryRow(ctx, s.q(`
				SELECT job_id FROM executor.runs
				WHERE id = $1 AND epoch = $2 AND executor_id IS NOT NULL AND status = 'running' FOR UPDATE`),
				c.RunID, c.Epoch).Scan(&job)
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrFenced
			}
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, s.q(unlessCancelled), c.RunID); err != nil {
				return err
			}
			_, err = s.rekey(ctx, tx, rekey{run: c.RunID, job: job, status: Running, epoch: c.Epoch, state: "available", release: true, reason: reason})
			return err
		})
	})
}

// end carries out a move that ends the claim. When the fence answers that the
// claim is over, it may be that an earlier try ended it and the answer was
// lost: then the run says so.
func (s *Store) end(ctx context.Context, c *Claim, to Status, queue func(*pgx.Batch) error) error {
	return s.persist(ctx, "move to "+string(to), func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		if err := queue(b); err != nil {
			return err
		}
		err := s.batch(ctx, b)
		if !isFence(err) {
			return err
		}
		var mine bool
		if err := s.pool.QueryRow(ctx, s.q(`SELECT epoch = $2 AND status = $3 FROM executor.runs WHERE id = $1`), c.RunID, c.Epoch, to).Scan(&mine); err != nil {
			return err
		}
		if !mine {
			return ErrFenced
		}
		return nil
	})
}
