package runs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The statements that touch river_job stand in this file and in the SQL
// functions enqueue_run and cancel_run, written against riverVersion.
//
// River's own writes check a job's id and that it is running, nothing else. So
// the id is the fencing token towards River: whoever hands a job on gives it a
// new id, and the writes of the former holder, however late, find nothing.

// riverVersion is River's schema version (its migration line "main").
const riverVersion = 8

// CheckRiver fails unless River's tables are the ones this file was written
// against.
func (s *Store) CheckRiver(ctx context.Context) error {
	var version int
	err := s.pool.QueryRow(ctx, s.q(`SELECT max(version) FROM executor.river_migration WHERE line = 'main'`)).Scan(&version)
	if err != nil {
		return fmt.Errorf("river's schema version: %w", err)
	}
	if version != riverVersion {
		return fmt.Errorf("river's schema has version %d; this program was written against %d", version, riverVersion)
	}
	return nil
}

// queueEnd ends the run and its job in one statement: the job gets the state
// that says the same, whatever it was in.
func (s *Store) queueEnd(b *pgx.Batch, c *Claim, to Status, code, message, step *string) {
	b.Queue(s.q(`
		WITH ended AS (
		    UPDATE executor.runs
		    SET status = $3, finished_at = now(), executor_id = NULL,
		        failure_code = $4, failure_message = $5, failed_step = $6,
		        cancel_requested_at = CASE WHEN $3 = 'cancelled' THEN coalesce(cancel_requested_at, now()) ELSE cancel_requested_at END
		    WHERE id = $1 AND epoch = $2 AND executor_id IS NOT NULL AND status = ANY ($7)
		    RETURNING job_id
		)
		UPDATE executor.river_job AS job
		SET state = $8::text::executor.river_job_state, finalized_at = now(),
		    errors = CASE WHEN $9::text IS NULL THEN job.errors ELSE array_append(job.errors,
		        jsonb_build_object('at', now(), 'attempt', job.attempt, 'error', $9::text, 'trace', '')) END
		FROM ended WHERE job.id = ended.job_id`),
		c.RunID, c.Epoch, to, code, message, step, before(to), jobStateOf(to), jobError(to, code, message))
}

// jobStateOf is the final state of River's that says the same as a run's.
func jobStateOf(s Status) string {
	switch s {
	case Succeeded:
		return "completed"
	case Cancelled:
		return "cancelled"
	}
	return "discarded"
}

// jobError is what a failed run's job shows: the code first.
func jobError(to Status, code, message *string) *string {
	if to != Failed {
		return nil
	}
	text := *code + ": " + clip(*message, 1000)
	return &text
}

// queueBackOff moves the run to backing_off and writes why and until when into
// the job's metadata, and lets the job wait where its host can be reached. The
// job itself is moved by River when the worker returns.
func (s *Store) queueBackOff(b *pgx.Batch, c *Claim, code string, attempt int, retryAt time.Time) {
	b.Queue(s.q(`
		WITH moved AS (
		    UPDATE executor.runs SET status = 'backing_off', retry_at = $3, executor_id = NULL
		    WHERE id = $1 AND epoch = $2 AND executor_id IS NOT NULL AND status = ANY ($4)
		    RETURNING job_id
		)
		UPDATE executor.river_job AS job
		SET queue = executor.home_queue($1), metadata = job.metadata || jsonb_build_object('failure_code', $5::text, 'attempt', $6::integer, 'retry_at', $3::timestamptz)
		FROM moved WHERE job.id = moved.job_id`),
		c.RunID, c.Epoch, retryAt, before(BackingOff), code, attempt)
}

// rekey names the run as the reconciler saw it, and the state its job is to
// have under its new id.
type rekey struct {
	run         uuid.UUID
	job         int64
	status      Status
	epoch       int64
	state       string     // available, running or scheduled
	scheduledAt *time.Time // of scheduled
	release     bool       // the run's owner lets go of it, or has died
	crashes     *int       // the run's crashes from now on; nil: as before
	owner       string     // of running: who River is to believe works on it
	reason      string     // appended to the job's errors; empty: nothing
	cancel      bool       // the run is to be cancelled by whoever claims it
}

// rekey gives the run's job a new id and the state, in one statement with the
// run's epoch, and wakes executors. It returns the new id, or 0 where the run
// was no longer as described.
func (s *Store) rekey(ctx context.Context, db DB, k rekey) (int64, error) {
	var job int64
	var queue string
	err := db.QueryRow(ctx, s.q(`
		WITH run AS (
		    SELECT id, job_id FROM executor.runs
		    WHERE id = $1 AND job_id = $2 AND status = $3 AND epoch = $4
		    FOR UPDATE
		), job AS (
		    UPDATE executor.river_job AS job
		    SET id = nextval('executor.river_job_id_seq'), state = $5::text::executor.river_job_state, finalized_at = NULL,
		        queue = CASE WHEN $5 = 'running' THEN job.queue ELSE executor.home_queue($1) END,
		        attempt = CASE WHEN $5 = 'running' THEN job.attempt ELSE greatest(job.attempt - 1, 0) END,
		        attempted_by = CASE WHEN $9 <> '' THEN array_append(job.attempted_by, $9) ELSE job.attempted_by END,
		        scheduled_at = coalesce($6, now()),
		        metadata = CASE WHEN $11 THEN job.metadata || jsonb_build_object('cancel_attempted_at', now()) ELSE job.metadata END,
		        errors = CASE WHEN $10 = '' THEN job.errors ELSE array_append(job.errors,
		            jsonb_build_object('at', now(), 'attempt', job.attempt, 'error', $10::text, 'trace', '')) END
		    FROM run WHERE job.id = run.job_id
		    RETURNING job.id, job.queue
		), moved AS (
		    UPDATE executor.runs
		    SET job_id = job.id,
		        executor_id = CASE WHEN $7 THEN NULL ELSE executor_id END,
		        crashes = coalesce($8, crashes),
		        cancel_requested_at = CASE WHEN $11 THEN coalesce(cancel_requested_at, now()) ELSE cancel_requested_at END
		    FROM job WHERE runs.id = $1
		    RETURNING job.id, job.queue
		)
		SELECT id, queue FROM moved`),
		k.run, k.job, k.status, k.epoch, k.state, k.scheduledAt, k.release, k.crashes, k.owner, k.reason, k.cancel).Scan(&job, &queue)
	if err == pgx.ErrNoRows {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if k.state == "available" {
		_, err = db.Exec(ctx, s.q(`SELECT pg_notify('executor.river_insert', json_build_object('queue', $1::text)::text)`), queue)
	}
	return job, err
}

// renewJob makes the job of a reopened run available, under a new id; where
// River has pruned it, a new one is made.
func (s *Store) renewJob(ctx context.Context, tx DB, run uuid.UUID) error {
	var queue string
	err := tx.QueryRow(ctx, s.q(`
		WITH job AS (
		    UPDATE executor.river_job AS job
		    SET id = nextval('executor.river_job_id_seq'), state = 'available', finalized_at = NULL, scheduled_at = now(), queue = run.queue,
		        max_attempts = CASE WHEN job.attempt >= job.max_attempts THEN job.attempt + 1 ELSE job.max_attempts END,
		        metadata = job.metadata - 'cancel_attempted_at'
		    FROM executor.runs AS run WHERE run.id = $1 AND job.id = run.job_id
		    RETURNING job.id, job.queue
		), made AS (
		    INSERT INTO executor.river_job (kind, args, max_attempts, queue)
		    SELECT 'run', jsonb_build_object('run_id', $1::uuid), 1, (SELECT queue FROM executor.runs WHERE id = $1) WHERE NOT EXISTS (SELECT FROM job)
		    RETURNING id, queue
		), new AS (TABLE job UNION ALL TABLE made), moved AS (
		    UPDATE executor.runs SET job_id = new.id FROM new WHERE runs.id = $1
		)
		SELECT queue FROM new`), run).Scan(&queue)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.q(`SELECT pg_notify('executor.river_insert', json_build_object('queue', $1::text)::text)`), queue)
	return err
}

// endUnowned ends a run that nobody works on, with its job if there is one:
// the reconciler's end.
func (s *Store) endUnowned(ctx context.Context, db DB, o Observed, to Status, code, message *string) (bool, error) {
	var ended bool
	err := db.QueryRow(ctx, s.q(`
		WITH ended AS (
		    UPDATE executor.runs
		    SET status = $4, finished_at = now(), executor_id = NULL, retry_at = NULL,
		        failure_code = $5, failure_message = $6,
		        cancel_requested_at = CASE WHEN $4 = 'cancelled' THEN coalesce(cancel_requested_at, now()) ELSE cancel_requested_at END
		    WHERE id = $1 AND epoch = $2 AND job_id = $3 AND status = $7
		      AND executor_id IS NOT DISTINCT FROM $8
		    RETURNING job_id
		), job AS (
		    UPDATE executor.river_job AS job
		    SET state = $9::text::executor.river_job_state, finalized_at = coalesce(job.finalized_at, now()),
		        errors = CASE WHEN $10::text IS NULL THEN job.errors ELSE array_append(job.errors,
		            jsonb_build_object('at', now(), 'attempt', job.attempt, 'error', $10::text, 'trace', '')) END
		    FROM ended WHERE job.id = ended.job_id
		)
		SELECT EXISTS (SELECT FROM ended)`),
		o.RunID, o.Epoch, o.JobID, to, code, message, o.Status, o.ExecutorID, jobStateOf(to), jobError(to, code, message)).Scan(&ended)
	return ended, err
}

// restate gives the job of a finished run the final state that says the same.
func (s *Store) restate(ctx context.Context, o Observed) (bool, error) {
	tag, err := s.pool.Exec(ctx, s.q(`
		UPDATE executor.river_job AS job SET state = $4::text::executor.river_job_state
		FROM executor.runs AS run
		WHERE run.id = $1 AND run.status = $2 AND run.job_id = $3 AND job.id = run.job_id
		  AND job.finalized_at IS NOT NULL AND job.state <> $4::text::executor.river_job_state`),
		o.RunID, o.Status, o.JobID, jobStateOf(o.Status))
	return tag.RowsAffected() > 0, err
}

// ReturnFromMachines moves the jobs that wait in the queue of a machine without
// an executor back to their runs' own queues, once the machine has been without
// one for the grace: whoever claims them treats its hosts as gone.
func (s *Store) ReturnFromMachines(ctx context.Context, grace time.Duration) (int, error) {
	rows, err := s.pool.Query(ctx, s.q(`
		UPDATE executor.river_job AS job SET queue = run.queue
		FROM executor.runs AS run
		WHERE run.job_id = job.id AND job.state IN ('available', 'scheduled', 'retryable')
		  AND job.queue LIKE 'machine-%' AND job.queue <> run.queue
		  AND NOT EXISTS (
		      SELECT FROM executor.executors AS e
		      WHERE executor.machine_queue(e.machine) = job.queue
		        AND coalesce(e.stopped_at, e.lost_at, now()) > now() - $1::interval)
		RETURNING run.queue`), grace)
	if err != nil {
		return 0, err
	}
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	for _, queue := range slices.Compact(slices.Sorted(slices.Values(queues))) {
		if _, err := s.pool.Exec(ctx, s.q(`SELECT pg_notify('executor.river_insert', json_build_object('queue', $1::text)::text)`), queue); err != nil {
			return len(queues), err
		}
	}
	return len(queues), nil
}
