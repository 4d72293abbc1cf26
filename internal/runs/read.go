package runs

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
)

// Summary is a run as lists show it.
type Summary struct {
	ID                uuid.UUID  `json:"id"`
	Name              string     `json:"name,omitempty"`
	Status            Status     `json:"status" enum:"queued,running,backing_off,succeeded,failed,cancelled"`
	FailureCode       string     `json:"failure_code,omitempty" doc:"Why the run failed; never empty on a failed run."`
	FailureMessage    string     `json:"failure_message,omitempty"`
	FailedStep        string     `json:"failed_step,omitempty"`
	Attempts          int        `json:"attempts" doc:"Tries at all its steps so far."`
	Crashes           int        `json:"crashes,omitempty" doc:"Executors that died under it."`
	JobID             int64      `json:"job_id" doc:"The job in River that delivers it."`
	CreatedAt         time.Time  `json:"created_at"`
	StartedAt         *time.Time `json:"started_at,omitempty"`
	FinishedAt        *time.Time `json:"finished_at,omitempty"`
	RetryAt           *time.Time `json:"retry_at,omitempty" doc:"When a run that backs off goes on."`
	CancelRequestedAt *time.Time `json:"cancel_requested_at,omitempty"`
}

// Detail is a run with everything that is known of it, but its output.
type Detail struct {
	Summary
	Spec   Spec         `json:"spec" doc:"What was asked for, without values that may be secret."`
	Steps  []StepDetail `json:"steps" nullable:"false" doc:"The steps that have begun, in order."`
	Hosts  []HostDetail `json:"hosts" nullable:"false" doc:"Every host that was made for the run."`
	Events []Event      `json:"events" nullable:"false" doc:"Every move of the run, oldest first."`
}

// StepDetail is a step that has begun.
type StepDetail struct {
	Name       string          `json:"name"`
	Status     Status          `json:"status" enum:"running,succeeded,failed,cancelled"`
	Result     json.RawMessage `json:"result,omitempty" doc:"What the step yielded."`
	StartedAt  time.Time       `json:"started_at"`
	FinishedAt *time.Time      `json:"finished_at,omitempty"`
	Attempts   []AttemptDetail `json:"attempts" nullable:"false"`
}

// AttemptDetail is one try at a step, or at one command of a composite step.
type AttemptDetail struct {
	Member      string        `json:"member,omitempty" doc:"Which command of a parallel step."`
	N           int           `json:"n"`
	Outcome     string        `json:"outcome,omitempty" enum:"succeeded,failed,cancelled,interrupted" doc:"Empty while it is under way."`
	FailureCode string        `json:"failure_code,omitempty"`
	Causes      []faults.Link `json:"causes,omitempty" doc:"The chain of errors, outermost first."`
	ExitCode    *int          `json:"exit_code,omitempty" doc:"128+n where signal n ended the process."`
	ExitSignal  string        `json:"exit_signal,omitempty" doc:"Such as SIGKILL."`
	StartedAt   time.Time     `json:"started_at"`
	EndedAt     *time.Time    `json:"ended_at,omitempty"`
	RetryAt     *time.Time    `json:"retry_at,omitempty"`
}

// HostDetail is one row of the ledger of hosts.
type HostDetail struct {
	Key        string     `json:"key"`
	Provider   string     `json:"provider"`
	HostID     string     `json:"host_id,omitempty"`
	State      string     `json:"state" enum:"creating,active,releasing,released"`
	CreatedAt  time.Time  `json:"created_at"`
	ReleasedAt *time.Time `json:"released_at,omitempty"`
}

// Event is one move of a run.
type Event struct {
	At   time.Time       `json:"at"`
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

const summaryColumns = `
	run.id, coalesce(run.spec ->> 'name', ''), run.status, coalesce(run.failure_code, ''), coalesce(run.failure_message, ''),
	coalesce(run.failed_step, ''), (SELECT count(*) FROM executor.run_attempts AS a WHERE a.run_id = run.id), run.crashes, run.job_id,
	run.created_at, run.started_at, run.finished_at, run.retry_at, run.cancel_requested_at`

func (r *Summary) columns() []any {
	return []any{&r.ID, &r.Name, &r.Status, &r.FailureCode, &r.FailureMessage, &r.FailedStep, &r.Attempts, &r.Crashes, &r.JobID,
		&r.CreatedAt, &r.StartedAt, &r.FinishedAt, &r.RetryAt, &r.CancelRequestedAt}
}

// Summary returns a run without its parts, or ErrNotFound.
func (s *Store) Summary(ctx context.Context, id uuid.UUID) (Summary, error) {
	var r Summary
	err := s.pool.QueryRow(ctx, s.q(`SELECT `+summaryColumns+` FROM executor.runs AS run WHERE run.id = $1`), id).Scan(r.columns()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, ErrNotFound
	}
	return r, err
}

// Submit enqueues a run in a transaction of its own and returns it, and whether
// it is new: not so where the key had named it before. Errors are Enqueue's.
func (s *Store) Submit(ctx context.Context, spec Spec, o Options) (r Summary, fresh bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		id, err := s.Enqueue(ctx, tx, spec, o)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, s.q(`
			SELECT `+summaryColumns+`, run.xmin = pg_current_xact_id()::xid
			FROM executor.runs AS run WHERE run.id = $1`), id).Scan(append(r.columns(), &fresh)...)
	})
	return r, fresh, err
}

// ErrAmbiguous: more than one run's id begins like this.
var ErrAmbiguous = errors.New("several runs begin like this; give more of the id")

// Resolve finds the run that an id, or the first four or more characters of
// one, names. The error is ErrNotFound or ErrAmbiguous, or one of Postgres.
func (s *Store) Resolve(ctx context.Context, prefix string) (uuid.UUID, error) {
	if id, err := uuid.Parse(prefix); err == nil {
		return id, nil
	}
	hex := strings.ToLower(strings.ReplaceAll(prefix, "-", ""))
	if len(hex) < 4 || len(hex) > 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return uuid.Nil, ErrNotFound
	}
	rows, err := s.pool.Query(ctx, s.q(`SELECT id FROM executor.runs WHERE id BETWEEN $1::uuid AND $2::uuid LIMIT 2`),
		hex+strings.Repeat("0", 32-len(hex)), hex+strings.Repeat("f", 32-len(hex)))
	if err != nil {
		return uuid.Nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	switch {
	case err != nil:
		return uuid.Nil, err
	case len(ids) == 0:
		return uuid.Nil, ErrNotFound
	case len(ids) > 1:
		return uuid.Nil, ErrAmbiguous
	}
	return ids[0], nil
}

// Filter says which runs List returns. Zero values do not filter.
type Filter struct {
	Status      Status
	FailureCode string
	Before      time.Time // created before; for the next page
	BeforeID    uuid.UUID // of those created at Before: behind this one, as runs of one transaction are
	Limit       int       // at most; 0 is 50
}

// List returns runs, newest first.
func (s *Store) List(ctx context.Context, f Filter) ([]Summary, error) {
	if f.Limit == 0 {
		f.Limit = 50
	}
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT `+summaryColumns+`
		FROM executor.runs AS run
		WHERE ($1 = '' OR run.status = $1) AND ($2 = '' OR run.failure_code = $2)
		  AND ($3::timestamptz IS NULL OR run.created_at < $3
		       OR (run.created_at = $3 AND run.id > $5 AND $5 <> '00000000-0000-0000-0000-000000000000'))
		ORDER BY run.created_at DESC, run.id LIMIT $4`), string(f.Status), f.FailureCode, timeOrNull(f.Before), f.Limit, f.BeforeID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Summary, err error) {
		err = row.Scan(r.columns()...)
		return r, err
	})
}

// Get returns a run with everything that is known of it, or ErrNotFound. All
// of it is of one moment.
func (s *Store) Get(ctx context.Context, id uuid.UUID) (Detail, error) {
	var d Detail
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var spec []byte
		err := tx.QueryRow(ctx, s.q(`SELECT `+summaryColumns+`, run.spec FROM executor.runs AS run WHERE run.id = $1`), id).
			Scan(append(d.Summary.columns(), &spec)...)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		// One that plain SQL enqueued may be no spec: what can be read of it is
		// shown.
		parsed, _ := ParseSpec(spec)
		d.Spec = parsed.Redacted()
		return s.getParts(ctx, tx, id, &d)
	})
	return d, err
}

func (s *Store) getParts(ctx context.Context, tx pgx.Tx, id uuid.UUID, d *Detail) error {
	d.Steps, d.Hosts, d.Events = []StepDetail{}, []HostDetail{}, []Event{}
	byName := map[string]int{}
	b := &pgx.Batch{}
	b.Queue(s.q(`
		SELECT name, status, result, started_at, finished_at
		FROM executor.run_steps WHERE run_id = $1 ORDER BY position`), id).Query(func(rows pgx.Rows) error {
		var st StepDetail
		_, err := pgx.ForEachRow(rows, []any{&st.Name, &st.Status, &st.Result, &st.StartedAt, &st.FinishedAt}, func() error {
			byName[st.Name] = len(d.Steps)
			st.Attempts = []AttemptDetail{}
			d.Steps = append(d.Steps, st)
			st.Result = nil
			return nil
		})
		return err
	})
	b.Queue(s.q(`
		SELECT step, member, n, coalesce(outcome, ''), coalesce(failure_code, ''), causes, exit_code, coalesce(exit_signal, ''), started_at, ended_at, retry_at
		FROM executor.run_attempts WHERE run_id = $1 ORDER BY started_at, member, n`), id).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var step string
			var a AttemptDetail
			if err := rows.Scan(&step, &a.Member, &a.N, &a.Outcome, &a.FailureCode, &a.Causes, &a.ExitCode, &a.ExitSignal, &a.StartedAt, &a.EndedAt, &a.RetryAt); err != nil {
				return err
			}
			if i, ok := byName[step]; ok {
				d.Steps[i].Attempts = append(d.Steps[i].Attempts, a)
			}
		}
		return rows.Err()
	})
	b.Queue(s.q(`
		SELECT key, provider, coalesce(host_id, ''), state, created_at, released_at
		FROM executor.sandbox_hosts WHERE run_id = $1 ORDER BY id`), id).Query(func(rows pgx.Rows) (err error) {
		d.Hosts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[HostDetail])
		return err
	})
	b.Queue(s.q(`
		SELECT at, kind, data FROM executor.run_events WHERE run_id = $1 ORDER BY id`), id).Query(func(rows pgx.Rows) (err error) {
		d.Events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
		return err
	})
	return tx.SendBatch(ctx, b).Close()
}
