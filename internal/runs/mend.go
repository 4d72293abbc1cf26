package runs

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
)

// Mend carries out an action on what was observed, if it is still so; it
// reports whether it was. crashBudget is how many crashes a run survives.
func (s *Store) Mend(ctx context.Context, o Observed, a Action, crashBudget int) (bool, error) {
	k := rekey{run: o.RunID, job: o.JobID, status: o.Status, epoch: o.Epoch}
	switch a {
	case Keep:
		k.state, k.owner = "running", o.Owner.String()
	case HandBack:
		k.state, k.release, k.reason = "available", true, "handed back: its executor does not work on it"
	case Charge:
		outage, err := s.outage(ctx, *o.Owner, o.RunID)
		if err != nil {
			return false, err
		}
		crashes := o.Crashes
		if !outage {
			crashes++
		}
		if crashes > crashBudget {
			return s.mendByEnd(ctx, o, faults.ExecutorLost, fmt.Sprintf("%d executors in a row died under the run", crashes))
		}
		k.state, k.release, k.crashes, k.reason = "available", true, &crashes, "handed back: executor "+o.Owner.String()+" died"
	case Wait:
		k.state, k.scheduledAt = "scheduled", o.RetryAt
	case Cancel:
		return s.mendByCancel(ctx, o, k)
	case Orphan:
		return s.mendByEnd(ctx, o, faults.Orphaned, "the run's job is "+o.JobState+" though the run has not ended")
	case Restate:
		return s.restate(ctx, o)
	default:
		return false, nil
	}
	job, err := s.rekey(ctx, s.pool, k)
	return job != 0, err
}

func (s *Store) mendByEnd(ctx context.Context, o Observed, kind *faults.Kind, message string) (ended bool, err error) {
	code := kind.Code()
	err = pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
		if ended, err = s.endUnowned(ctx, tx, o, Failed, &code, &message); err != nil || !ended {
			return err
		}
		return s.closeLeftovers(ctx, tx, o.RunID, "failed", "interrupted")
	})
	return ended, err
}

// mendByCancel ends the run, or lets the next executor do it where a process
// must be stopped first.
func (s *Store) mendByCancel(ctx context.Context, o Observed, k rekey) (mended bool, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
		var busy bool
		if err := tx.QueryRow(ctx, s.q(`
			SELECT EXISTS (SELECT FROM executor.run_launches WHERE run_id = $1 AND ended_at IS NULL)`), o.RunID).Scan(&busy); err != nil {
			return err
		}
		if busy {
			k.state, k.release, k.cancel = "available", true, true
			job, err := s.rekey(ctx, tx, k)
			mended = job != 0
			return err
		}
		if mended, err = s.endUnowned(ctx, tx, o, Cancelled, nil, nil); err != nil || !mended {
			return err
		}
		return s.closeLeftovers(ctx, tx, o.RunID, "cancelled", "cancelled")
	})
	return mended, err
}

// closeLeftovers ends the open step and attempts of a run that has ended.
func (s *Store) closeLeftovers(ctx context.Context, db DB, run uuid.UUID, step, attempt string) error {
	b := &pgx.Batch{}
	s.queueAttemptsClosed(b, &Claim{RunID: run}, step, attempt)
	return db.SendBatch(ctx, b).Close()
}
