package runs_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

// cell is one question of the reconciliation table, as rows.
type cell struct {
	run     runs.RunState
	status  runs.Status
	job     string
	alive   bool
	working bool
}

func (c cell) String() string {
	return fmt.Sprintf("%s, %s, alive %v, working %v", c.status, c.job, c.alive, c.working)
}

func cells() []cell {
	var all []cell
	for _, run := range runs.RunStates {
		status := runs.Status(run)
		if run == runs.RunReleased {
			status = runs.Running
		}
		for _, job := range runs.JobStates {
			for _, o := range [][2]bool{{true, true}, {true, false}, {false, false}} {
				all = append(all, cell{run, status, job, o[0], o[1]})
			}
		}
	}
	return all
}

// Every cell, on real rows: what the reaper sees, what is done, and that run
// and job agree afterwards.
func TestEveryCellOfReconciliation(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	seen := map[runs.Action]bool{}
	for _, c := range cells() {
		id, executor := arrange(t, store, c)
		want := runs.Reconcile(c.run, c.job, c.alive, c.working)
		seen[want] = true

		var observed runs.Observed
		if c.alive {
			owned, err := store.OwnedBy(ctx, executor)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(owned, func(o runs.Observed) bool { return o.RunID == id })
			if i < 0 {
				continue // nobody owns it: the same cell comes with a dead owner
			}
			observed = owned[i]
		} else {
			all, err := store.Disagreements(ctx)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(all, func(o runs.Observed) bool { return o.RunID == id })
			if (i >= 0) != (want != runs.None) {
				t.Errorf("%s: the reaper sees it: %v; the action is %q", c, i >= 0, want)
			}
			if i < 0 {
				continue
			}
			observed = all[i]
		}
		if observed.State() != c.run || observed.JobState != c.job || observed.Alive != c.alive {
			t.Fatalf("%s: observed %+v", c, observed)
		}
		mended, err := store.Mend(ctx, observed, want, 3)
		if err != nil || mended != (want != runs.None) {
			t.Fatalf("%s: %q: mended %v, %v", c, want, mended, err)
		}
		checkAgreement(t, store, id, c, want)
		// What was mended is not mended again.
		if again, err := store.Mend(ctx, observed, want, 3); err != nil || again {
			t.Errorf("%s: %q a second time: %v, %v", c, want, again, err)
		}
	}
	for _, a := range []runs.Action{runs.None, runs.Keep, runs.HandBack, runs.Charge, runs.Wait, runs.Cancel, runs.Orphan, runs.Restate} {
		if !seen[a] {
			t.Errorf("no cell leads to %q", a)
		}
	}
}

// arrange writes the rows of a cell.
func arrange(t *testing.T, store *runs.Store, c cell) (run, executor uuid.UUID) {
	t.Helper()
	ctx := context.Background()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := store.Pool().Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v\n%s", c, err, sql)
		}
	}
	executor = uuid.New()
	if err := store.Register(ctx, runs.ExecutorInfo{ID: executor, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	if !c.alive {
		exec(`UPDATE executor.executors SET lost_at = now() WHERE id = $1`, executor)
	}
	if err := store.Pool().QueryRow(ctx, `SELECT executor.enqueue_run('{"steps": [{"name": "a", "shell": "true"}]}')`).Scan(&run); err != nil {
		t.Fatal(err)
	}
	exec(`UPDATE executor.river_job SET state = $2::text::executor.river_job_state, attempt = 1, attempted_by = ARRAY[$3::text],
	      finalized_at = CASE WHEN $2 IN ('completed', 'discarded', 'cancelled') THEN now() END
	      WHERE id = (SELECT job_id FROM executor.runs WHERE id = $1)`, run, map[bool]string{true: "available", false: c.job}[c.job == "missing"], executor)
	if c.job == "missing" {
		exec(`DELETE FROM executor.river_job WHERE id = (SELECT job_id FROM executor.runs WHERE id = $1)`, run)
	}
	var owner *uuid.UUID
	if c.run == runs.RunOwned {
		owner = &executor
	}
	exec(`UPDATE executor.runs SET status = $2::text, epoch = 1, started_at = now(), executor_id = $3,
	      retry_at = CASE WHEN $2 = 'backing_off' THEN now() + interval '1 hour' END,
	      finished_at = CASE WHEN $2 IN ('succeeded', 'failed', 'cancelled') THEN now() END,
	      failure_code = CASE WHEN $2 = 'failed' THEN 'internal' END, failure_message = CASE WHEN $2 = 'failed' THEN 'x' END,
	      cancel_requested_at = CASE WHEN $2 = 'cancelled' THEN now() END
	      WHERE id = $1`, run, c.status, owner)
	return run, executor
}

// checkAgreement looks at a run and its job after the action.
func checkAgreement(t *testing.T, store *runs.Store, id uuid.UUID, c cell, a runs.Action) {
	t.Helper()
	var status runs.Status
	var job, code string
	var owned bool
	var crashes int
	err := store.Pool().QueryRow(context.Background(), `
		SELECT run.status, run.executor_id IS NOT NULL, run.crashes, coalesce(run.failure_code, ''), coalesce(job.state::text, 'missing')
		FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id WHERE run.id = $1`, id).Scan(&status, &owned, &crashes, &code, &job)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus, wantJob := c.status, c.job
	switch a {
	case runs.Keep:
		wantJob = "running"
	case runs.HandBack, runs.Charge:
		wantJob = "available"
	case runs.Wait:
		wantJob = "scheduled"
	case runs.Cancel:
		wantStatus, wantJob = runs.Cancelled, "cancelled"
	case runs.Restate:
		wantJob = map[runs.Status]string{runs.Succeeded: "completed", runs.Failed: "discarded", runs.Cancelled: "cancelled"}[c.status]
	case runs.Orphan:
		wantStatus = runs.Failed
		if c.job != "missing" {
			wantJob = "discarded"
		}
		if code != "orphaned" {
			t.Errorf("%s: %q: code %q", c, a, code)
		}
	}
	if status != wantStatus || job != wantJob {
		t.Errorf("%s: %q: the run is %s and its job %s; want %s and %s", c, a, status, job, wantStatus, wantJob)
	}
	if wantOwned := c.run == runs.RunOwned && (a == runs.None || a == runs.Keep); owned != wantOwned {
		t.Errorf("%s: %q: owned %v", c, a, owned)
	}
	if (crashes == 1) != (a == runs.Charge) {
		t.Errorf("%s: %q: %d crashes", c, a, crashes)
	}
}

func TestTheCrashBudgetEnds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	id, _ := arrange(t, store, cell{runs.RunOwned, runs.Running, "running", false, false})
	if _, err := store.Pool().Exec(ctx, `UPDATE executor.runs SET crashes = 3 WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	all, err := store.Disagreements(ctx)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if mended, err := store.Mend(ctx, all[0], runs.Charge, 3); err != nil || !mended {
		t.Fatal(mended, err)
	}
	r, err := store.Summary(ctx, id)
	if err != nil || r.Status != runs.Failed || r.FailureCode != "executor_lost" {
		t.Errorf("%+v, %v", r, err)
	}
}
