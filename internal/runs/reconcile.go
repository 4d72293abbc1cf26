package runs

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Reconciliation makes a run and its job agree again after a crash, a late
// write of River's, or something an operator did. It is one total function of
// what is seen; Reconcile is that function, and its table stands in
// docs/architecture.md.

// RunState is a run's status with running split by who works on it.
type RunState string

const (
	RunQueued     RunState = "queued"
	RunOwned      RunState = "running"     // an executor works on it
	RunReleased   RunState = "handed over" // running, and waiting for the next executor
	RunBackingOff RunState = "backing_off"
	RunSucceeded  RunState = "succeeded"
	RunFailed     RunState = "failed"
	RunCancelled  RunState = "cancelled"
)

// RunStates lists every RunState.
var RunStates = []RunState{RunQueued, RunOwned, RunReleased, RunBackingOff, RunSucceeded, RunFailed, RunCancelled}

// JobStates lists the states of River's jobs, and "missing".
var JobStates = []string{"missing", "available", "scheduled", "retryable", "pending", "running", "completed", "discarded", "cancelled"}

// Action mends a run and its job.
type Action string

const (
	None     Action = "–"
	Keep     Action = "re-key, running"              // it stays its owner's, under an id that River's late writes do not know
	HandBack Action = "re-key, available"            // another executor continues it
	Charge   Action = "re-key, available, one crash" // as HandBack; past the crash budget the run fails with executor_lost
	Wait     Action = "re-key, scheduled"            // until retry_at
	Cancel   Action = "cancelled"                    // at once, or by the next executor where a process must be stopped first
	Orphan   Action = "failed, orphaned"
	Restate  Action = "job says the same" // a late write of River's, or an operator's cancel of a retry, ended it otherwise
)

// Reconcile is the table. The owner is the executor that works on the run, or
// that River gave the job to; working says that the run is in its working set.
func Reconcile(run RunState, job string, alive, working bool) Action {
	worked := alive && working
	finished := Status(run).Terminal()
	switch job {
	case "running":
		switch {
		case worked:
			return None
		case run == RunBackingOff:
			return Wait
		case run == RunOwned && !alive:
			return Charge
		}
		return HandBack
	case "available", "scheduled", "retryable", "pending":
		switch {
		case run == RunOwned && worked:
			return Keep
		case run == RunOwned && !alive:
			return Charge
		case run == RunOwned || job == "pending" && !finished:
			return HandBack
		}
		return None
	case "missing":
		if finished || run == RunOwned && worked {
			return None
		}
		return Orphan
	}
	// River, or somebody else, ended the job.
	switch {
	case finished && job == jobStateOf(Status(run)):
		return None
	case finished:
		return Restate
	case run == RunOwned && worked && job == "cancelled":
		return None // its worker hears of it
	case run == RunOwned && worked:
		return Keep
	case job == "cancelled":
		return Cancel
	case run == RunOwned && !alive:
		return Charge
	case run == RunOwned:
		return HandBack
	}
	return Orphan
}

// Observed is a run and its job as they were seen together.
type Observed struct {
	RunID      uuid.UUID
	Status     Status
	Epoch      int64
	JobID      int64
	ExecutorID *uuid.UUID // of the run
	RetryAt    *time.Time
	Crashes    int // in a row: none of them after ten minutes of work
	JobState   string
	Owner      *uuid.UUID // of the run, else of the running job
	Alive      bool       // the owner
}

// State is the run's part of the table's question.
func (o *Observed) State() RunState {
	switch {
	case o.Status.Terminal():
		return RunState(o.Status)
	case o.Status == Running && o.ExecutorID != nil:
		return RunOwned
	case o.Status == Running:
		return RunReleased
	case o.Status == BackingOff:
		return RunBackingOff
	}
	return RunQueued
}

// observe selects runs with their jobs; it is completed by a condition.
const observe = `
	SELECT run.id, run.status, run.epoch, run.job_id, run.executor_id, run.retry_at,
	       CASE WHEN owner.beat_at - run.claimed_at > interval '10 minutes' THEN 0 ELSE run.crashes END,
	       coalesce(job.state::text, 'missing'), owner.id,
	       owner.id IS NOT NULL AND owner.lost_at IS NULL AND owner.stopped_at IS NULL
	FROM executor.runs AS run
	LEFT JOIN executor.river_job AS job ON job.id = run.job_id
	LEFT JOIN executor.executors AS owner ON owner.id = coalesce(run.executor_id,
	    CASE WHEN job.state = 'running' AND job.attempted_by[cardinality(job.attempted_by)] ~ '^[0-9a-f-]{36}$'
	         THEN job.attempted_by[cardinality(job.attempted_by)]::uuid END)
`

// Disagreements lists runs that may not agree with their job, where the owner
// is dead or there is none. What a living executor owns it looks after itself.
func (s *Store) Disagreements(ctx context.Context) ([]Observed, error) {
	const dead = `(owner.id IS NULL OR owner.lost_at IS NOT NULL OR owner.stopped_at IS NOT NULL)`
	rows, err := s.pool.Query(ctx, s.q(observe+`
		WHERE run.status IN ('queued', 'running', 'backing_off')
		  AND NOT (run.executor_id IS NULL AND coalesce(job.state IN ('available', 'scheduled', 'retryable'), false))
		  AND `+dead+`
		UNION ALL`+observe+`
		WHERE run.finished_at IS NOT NULL AND job.state = 'running' AND `+dead+`
		UNION ALL`+observe+`
		WHERE job.finalized_at > now() - interval '1 hour' AND run.finished_at IS NOT NULL
		  AND job.state <> CASE run.status WHEN 'succeeded' THEN 'completed' WHEN 'failed' THEN 'discarded' ELSE 'cancelled' END::executor.river_job_state
		LIMIT 1000`))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Observed])
}

// OwnedBy lists the runs that an executor owns, or whose running job River
// gave to it, with the jobs.
func (s *Store) OwnedBy(ctx context.Context, executor uuid.UUID) ([]Observed, error) {
	rows, err := s.pool.Query(ctx, s.q(observe+`WHERE run.executor_id = $1
		UNION`+observe+`WHERE job.state = 'running' AND job.attempted_by[cardinality(job.attempted_by)] = $1::text AND run.executor_id IS NULL`), executor)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Observed])
}
