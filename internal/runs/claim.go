package runs

import (
	"context"
	"encoding/json"
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

// history is what earlier claims of the run left behind.
type history struct {
	steps    map[string]Status
	attempts []pastAttempt
	launches []pastLaunch
}

type pastAttempt struct {
	step, member string
	n, round     int
	code         string // of a failed one
	open         bool
	retryAt      *time.Time
	succeeded    bool
}

type pastLaunch struct {
	step, member   string
	n              int
	host           int64
	hostGone       bool
	open           bool
	startedAt      *time.Time
	stdout, stderr int64
}

func (s *Store) loadHistory(ctx context.Context, run uuid.UUID) (history, error) {
	h := history{steps: map[string]Status{}}
	b := &pgx.Batch{}
	b.Queue(s.q(`SELECT name, status FROM executor.run_steps WHERE run_id = $1`), run).Query(func(rows pgx.Rows) error {
		var name string
		var status Status
		_, err := pgx.ForEachRow(rows, []any{&name, &status}, func() error { h.steps[name] = status; return nil })
		return err
	})
	b.Queue(s.q(`
		SELECT step, member, n, round, coalesce(failure_code, ''), ended_at IS NULL, retry_at, outcome IS NOT DISTINCT FROM 'succeeded'
		FROM executor.run_attempts WHERE run_id = $1 ORDER BY n`), run).Query(func(rows pgx.Rows) error {
		var a pastAttempt
		_, err := pgx.ForEachRow(rows, []any{&a.step, &a.member, &a.n, &a.round, &a.code, &a.open, &a.retryAt, &a.succeeded}, func() error {
			h.attempts = append(h.attempts, a)
			return nil
		})
		return err
	})
	b.Queue(s.q(`
		SELECT l.step, l.member, l.n, l.host, h.state = 'released', l.ended_at IS NULL, l.started_at,
		       coalesce(max(st.length) FILTER (WHERE st.stream = 'stdout'), 0),
		       coalesce(max(st.length) FILTER (WHERE st.stream = 'stderr'), 0)
		FROM executor.run_launches AS l
		JOIN executor.sandbox_hosts AS h ON h.id = l.host
		LEFT JOIN executor.run_streams AS st ON (st.run_id, st.step, st.member, st.launch) = (l.run_id, l.step, l.member, l.n)
		WHERE l.run_id = $1
		GROUP BY l.run_id, l.step, l.member, l.n, h.state
		ORDER BY l.n`), run).Query(func(rows pgx.Rows) error {
		var l pastLaunch
		_, err := pgx.ForEachRow(rows, []any{&l.step, &l.member, &l.n, &l.host, &l.hostGone, &l.open, &l.startedAt, &l.stdout, &l.stderr}, func() error {
			h.launches = append(h.launches, l)
			return nil
		})
		return err
	})
	return h, s.batch(ctx, b)
}

// lastAttempt is the newest attempt of a step or member.
func (h *history) lastAttempt(step, member string) (pastAttempt, bool) {
	var last pastAttempt
	found := false
	for _, a := range h.attempts {
		if a.step == step && a.member == member {
			last, found = a, true
		}
	}
	return last, found
}

// lastLaunch is the newest launch of a step or member.
func (h *history) lastLaunch(step, member string) (pastLaunch, bool) {
	var last pastLaunch
	found := false
	for _, l := range h.launches {
		if l.step == step && l.member == member {
			last, found = l, true
		}
	}
	return last, found
}

// earlier lists the kinds that ended the failed attempts of a step or member
// in the given round: its used-up retries.
func (h *history) earlier(step, member string, round int) []*faults.Kind {
	var kinds []*faults.Kind
	for _, a := range h.attempts {
		if a.step != step || a.member != member || a.round != round || a.code == "" {
			continue
		}
		kind, ok := faults.ByCode(a.code)
		if !ok {
			kind = faults.Internal // a retired or a newer program's code
		}
		kinds = append(kinds, kind)
	}
	return kinds
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

// asJSON is v for a jsonb column: NUL characters, which jsonb refuses, become
// U+FFFD.
func asJSON(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	return sanitizeJSON(data), nil
}
