package runs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
)

// Claim is an executor's right to work on a run, for as long as the run's
// epoch stays what it is here.
type Claim struct {
	RunID      uuid.UUID
	JobID      int64
	Epoch      int64
	ExecutorID uuid.UUID
	Round      int
	StartedAt  time.Time // of the run's first claim
	Cancel     bool      // somebody asked for the end before the claim
	SpecJSON   []byte

	history history
}

// Verdict says what a delivery of a job amounts to.
type Verdict int

const (
	Claimed  Verdict = iota // the run is ours to work on
	Finished                // it has succeeded before: the job is complete, again
	Stale                   // somebody else has, or had, the run's job: leave it as it is
	Stray                   // the job is no run's
)

// Claim makes the executor the run's worker under a new epoch. A failed or
// cancelled run whose job is delivered was retried by an operator: it is
// reopened first. The error is one of Postgres.
func (s *Store) Claim(ctx context.Context, run uuid.UUID, job int64, executor uuid.UUID) (*Claim, Verdict, error) {
	c, err := s.claim(ctx, run, job, executor)
	if err != nil || c != nil {
		return c, Claimed, err
	}
	verdict, job, err := s.unclaimable(ctx, run, job, executor)
	if err != nil || verdict != Claimed {
		return nil, verdict, err
	}
	c, err = s.claim(ctx, run, job, executor)
	if c == nil && err == nil {
		return nil, Stale, nil // somebody was faster
	}
	return c, Claimed, err
}

// claim returns nil where the run cannot be claimed as it stands.
func (s *Store) claim(ctx context.Context, run uuid.UUID, job int64, executor uuid.UUID) (*Claim, error) {
	c := &Claim{RunID: run, ExecutorID: executor}
	err := s.pool.QueryRow(ctx, s.q(`
		UPDATE executor.runs AS run
		SET status = 'running', epoch = run.epoch + 1, executor_id = $3, retry_at = NULL,
		    started_at = coalesce(run.started_at, now()), claimed_at = now()
		FROM executor.river_job AS job
		WHERE run.id = $1 AND run.job_id = $2 AND job.id = $2 AND job.state = 'running'
		  AND (run.status = ANY ($4) OR (run.status = 'running' AND run.executor_id IS NULL))
		RETURNING job.id, run.epoch, run.round, run.started_at, run.cancel_requested_at IS NOT NULL OR job.metadata ? 'cancel_attempted_at', run.spec`),
		run, job, executor, before(Running)).Scan(&c.JobID, &c.Epoch, &c.Round, &c.StartedAt, &c.Cancel, &c.SpecJSON)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if c.Epoch > 1 {
		c.history, err = s.loadHistory(ctx, run)
	}
	return c, err
}

// unclaimable finds out why a run could not be claimed and mends what can be:
// it answers Claimed, and the job's new id, when the claim should be tried
// again.
func (s *Store) unclaimable(ctx context.Context, run uuid.UUID, job int64, executor uuid.UUID) (Verdict, int64, error) {
	verdict := Stale
	err := pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
		var o Observed
		err := tx.QueryRow(ctx, s.q(`
			SELECT run.id, run.status, run.epoch, run.job_id, run.executor_id
			FROM executor.runs AS run JOIN executor.river_job AS job ON job.id = run.job_id
			WHERE run.id = $1 AND run.job_id = $2 AND job.state = 'running'
			FOR UPDATE OF run`), run, job).Scan(&o.RunID, &o.Status, &o.Epoch, &o.JobID, &o.ExecutorID)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			var its bool
			err := tx.QueryRow(ctx, s.q(`SELECT EXISTS (SELECT FROM executor.runs WHERE id = $1 AND job_id = $2)`), run, job).Scan(&its)
			if !its {
				verdict = Stray
			}
			return err
		case err != nil:
			return err
		case o.Status == Succeeded:
			verdict = Finished
		case o.Status == Running:
			// A late write of River's made the job of a run that is being worked
			// on available. It stays its worker's, under an id that no such
			// write knows.
			_, err := s.rekey(ctx, tx, rekey{run: run, job: job, status: Running, epoch: o.Epoch, state: "running", owner: o.ExecutorID.String()})
			return err
		case Legal(o.Status, Queued):
			// Under a new id: the write with which River ended the job before
			// may still be on its way.
			verdict = Claimed
			if err := s.reopen(ctx, tx, run); err != nil {
				return err
			}
			job, err = s.rekey(ctx, tx, rekey{run: run, job: job, status: Queued, epoch: o.Epoch, state: "running", owner: executor.String()})
			return err
		}
		return nil
	})
	return verdict, job, err
}

// Spec parses what was enqueued. A spec that plain SQL enqueued is checked
// here for the first time; the error is then an InvalidSpec fault.
func (c *Claim) Spec() (Spec, error) {
	spec, err := ParseSpec(c.SpecJSON)
	if err != nil {
		return spec, faults.New(faults.InvalidSpec, "", err)
	}
	return spec, nil
}
