package jobs_test

import (
	"context"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
)

// attempt is a row of the ledger of attempts.
type attempt struct {
	Step, Member, Outcome, Code string
	Wait                        time.Duration // until the next try, as it was planned
}

func (w *world) attempts(id uuid.UUID) []attempt {
	w.t.Helper()
	rows, err := w.store.Pool().Query(context.Background(), `
		SELECT step, member, coalesce(outcome, ''), coalesce(failure_code, ''), coalesce(retry_at - ended_at, '0'::interval)
		FROM executor.run_attempts WHERE run_id = $1 ORDER BY step, member, n`, id)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var all []attempt
	for rows.Next() {
		var a attempt
		if err := rows.Scan(&a.Step, &a.Member, &a.Outcome, &a.Code, &a.Wait); err != nil {
			w.t.Fatal(err)
		}
		a.Wait = a.Wait.Round(time.Second) // less what the write took
		all = append(all, a)
	}
	return all
}

// skipWait does what River UI's retry button does to a job that waits.
func (w *world) skipWait(id uuid.UUID) {
	w.t.Helper()
	if _, err := w.river.JobRetry(context.Background(), w.job(id)); err != nil {
		w.t.Fatal(err)
	}
}

// skipWaits lets a run fail n times without its waits.
func (w *world) skipWaits(id uuid.UUID, n int) {
	w.t.Helper()
	for i := range n {
		w.eventually(func() bool { return len(w.attempts(id)) == i+1 && w.attempts(id)[i].Outcome == "failed" }, func() any { return w.attempts(id) }, i+1)
		w.await(id, state{runs.BackingOff, "", "scheduled"})
		w.skipWait(id)
	}
}

func (w *world) job(id uuid.UUID) int64 {
	return query[int64](w, `SELECT job_id FROM executor.runs WHERE id = $1`, id)
}

func (w *world) clean() {
	w.t.Helper()
	w.eventually(func() bool { return len(w.fake.Live()) == 0 }, func() any { return w.fake.Live() }, "no host")
	if misuse := w.fake.Misuse(); len(misuse) > 0 {
		w.t.Errorf("misuse: %v", misuse)
	}
	if n := query[int](w, `SELECT count(*) FROM executor.sandbox_hosts WHERE state <> 'released'`); n > 0 {
		w.eventually(func() bool {
			return query[int](w, `SELECT count(*) FROM executor.sandbox_hosts WHERE state <> 'released'`) == 0
		}, func() any { return n }, "every row closed")
	}
}
