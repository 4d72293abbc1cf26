package runs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

// meeting is one run at which two statements meet.
type meeting struct {
	t        *testing.T
	store    *runs.Store
	run      uuid.UUID
	job      int64
	executor uuid.UUID
	claim    *runs.Claim
	seen     []runs.Observed // by the reaper, before either
}

func (m *meeting) act(what string) (answer string) {
	ctx := context.Background()
	failed := &runs.StepError{Err: faults.New(faults.SandboxLost, "", nil)}
	var err error
	switch what {
	case "claim":
		var c *runs.Claim
		c, _, err = m.store.Claim(ctx, m.run, m.job, m.executor)
		if err == nil && c == nil {
			return "nothing"
		}
	case "succeed":
		err = m.store.Succeed(ctx, m.claim)
	case "fail":
		err = m.store.Fail(ctx, m.claim, failed)
	case "back off":
		err = m.store.BackOff(ctx, m.claim, failed, time.Now().Add(time.Hour))
	case "hand back":
		err = m.store.HandBack(ctx, m.claim, "test")
	case "cancel":
		_, err = m.store.Cancel(ctx, m.store.Pool(), m.run)
	case "reap":
		mended := false
		for _, o := range m.seen {
			mended, err = m.store.Mend(ctx, o, runs.Reconcile(o.State(), o.JobState, o.Alive, false), 3)
		}
		if !mended {
			return "nothing"
		}
	}
	switch {
	case errors.Is(err, runs.ErrFenced):
		return "fenced"
	case errors.Is(err, runs.ErrCancelled):
		return "to be cancelled"
	case err != nil:
		m.t.Errorf("%s: %v", what, err)
	}
	return "done"
}

func (m *meeting) look() (seen []runs.Observed) {
	m.t.Helper()
	seen, err := m.store.Disagreements(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	return seen
}

func (m *meeting) state() (s string) {
	m.t.Helper()
	if err := m.store.Pool().QueryRow(context.Background(), `
		SELECT run.status || CASE WHEN run.status NOT IN ('succeeded', 'failed', 'cancelled') AND cancel_requested_at IS NOT NULL THEN ' to be cancelled' ELSE '' END
		    || ', ' || coalesce(job.state::text, 'missing')
		FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id`).Scan(&s); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// Two statements meet at one run: both have begun, and wait for its row when
// the first of them gets it. Whatever the order, nothing is lost: what is left
// is an end, or something that the next pass of the reaper finds.
func TestTwoStatementsMeet(t *testing.T) {
	for _, c := range []struct {
		claimed, dead bool // what there is before
		first, second string
		answers       [2]string
		state, reaped string // then, and after another pass
	}{
		{false, true, "claim", "reap", [2]string{"done", "nothing"}, "running, running", "running, available"},
		{false, true, "reap", "claim", [2]string{"done", "nothing"}, "queued, available", "queued, available"},
		{true, true, "succeed", "reap", [2]string{"done", "nothing"}, "succeeded, completed", "succeeded, completed"},
		{true, true, "reap", "succeed", [2]string{"done", "fenced"}, "running, available", "running, available"},
		{true, true, "fail", "reap", [2]string{"done", "nothing"}, "failed, discarded", "failed, discarded"},
		{true, true, "reap", "fail", [2]string{"done", "fenced"}, "running, available", "running, available"},
		// It dies between the run's write and the job's.
		{true, true, "back off", "reap", [2]string{"done", "nothing"}, "backing_off, running", "backing_off, scheduled"},
		{true, true, "reap", "back off", [2]string{"done", "fenced"}, "running, available", "running, available"},
		{true, true, "hand back", "reap", [2]string{"done", "nothing"}, "running, available", "running, available"},
		{true, true, "reap", "hand back", [2]string{"done", "fenced"}, "running, available", "running, available"},
		{true, false, "succeed", "cancel", [2]string{"done", "done"}, "succeeded, completed", "succeeded, completed"},
		{true, false, "cancel", "succeed", [2]string{"done", "done"}, "succeeded, completed", "succeeded, completed"},
		{true, false, "back off", "cancel", [2]string{"done", "done"}, "cancelled, cancelled", "cancelled, cancelled"},
		{true, false, "cancel", "back off", [2]string{"done", "to be cancelled"}, "running to be cancelled, running", "running to be cancelled, running"},
		{true, false, "hand back", "cancel", [2]string{"done", "done"}, "cancelled, cancelled", "cancelled, cancelled"},
		{true, false, "cancel", "hand back", [2]string{"done", "to be cancelled"}, "running to be cancelled, running", "running to be cancelled, running"},
		{true, true, "cancel", "reap", [2]string{"done", "done"}, "running to be cancelled, available", "running to be cancelled, available"},
	} {
		t.Run(c.first+", "+c.second, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			m := &meeting{t: t, store: runstest.New(t), executor: uuid.New()}
			pool := m.store.Pool()
			m.run, m.job = delivered(t, m.store, m.executor)
			if c.claimed {
				var err error
				if m.claim, _, err = m.store.Claim(ctx, m.run, m.job, m.executor); err != nil || m.claim == nil {
					t.Fatal(m.claim, err)
				}
			}
			if c.dead {
				if _, err := pool.Exec(ctx, `UPDATE executor.executors SET lost_at = now()`); err != nil {
					t.Fatal(err)
				}
			}
			m.seen = m.look()

			holder, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback(ctx)
			if _, err := holder.Exec(ctx, `SELECT FROM executor.runs FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			var answers [2]chan string
			for i, what := range []string{c.first, c.second} {
				answers[i] = make(chan string, 1)
				go func() { answers[i] <- m.act(what) }()
				for waiting := 0; waiting <= i; time.Sleep(time.Millisecond) {
					if err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := holder.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if got := [2]string{<-answers[0], <-answers[1]}; got != c.answers {
				t.Errorf("they answer %q, want %q", got, c.answers)
			}
			if got := m.state(); got != c.state {
				t.Errorf("then it is %q, want %q", got, c.state)
			}
			m.seen = m.look()
			m.act("reap")
			if got := m.state(); got != c.reaped {
				t.Errorf("after another pass it is %q, want %q", got, c.reaped)
			}
			var ends int
			if err := pool.QueryRow(ctx, `SELECT count(*) FROM executor.run_events WHERE kind IN ('succeeded', 'failed', 'cancelled')`).Scan(&ends); err != nil || ends > 1 {
				t.Error(ends, err)
			}
		})
	}
}
