package runs_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
)

// delivered enqueues a run and lets River's part of a claim happen.
func delivered(t *testing.T, store *runs.Store, executor uuid.UUID) (run uuid.UUID, job int64) {
	t.Helper()
	return deliveredSpec(t, store, executor, simple)
}

func deliveredSpec(t *testing.T, store *runs.Store, executor uuid.UUID, spec string) (run uuid.UUID, job int64) {
	t.Helper()
	ctx := context.Background()
	if err := store.Register(ctx, runs.ExecutorInfo{ID: executor, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	err := store.Pool().QueryRow(ctx, `SELECT executor.enqueue_run($1)`, spec).Scan(&run)
	if err != nil {
		t.Fatal(err)
	}
	err = store.Pool().QueryRow(ctx, `
		UPDATE executor.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = ARRAY[$2::text]
		WHERE id = (SELECT job_id FROM executor.runs WHERE id = $1) RETURNING id`, run, executor).Scan(&job)
	if err != nil {
		t.Fatal(err)
	}
	return run, job
}

func TestOneClaimAtATime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	executor := uuid.New()
	run, job := delivered(t, store, executor)
	var claims atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c, _, err := store.Claim(ctx, run, job, executor)
			if err != nil {
				t.Error(err)
			}
			if c != nil {
				claims.Add(1)
			}
		})
	}
	all.Wait()
	if claims.Load() != 1 {
		t.Errorf("%d claims of one delivery", claims.Load())
	}
}

// A worker that was fenced off writes nothing, whatever it tries.
func TestAFencedWorkerWritesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	first, second := uuid.New(), uuid.New()
	run, job := delivered(t, store, first)
	old, _, err := store.Claim(ctx, run, job, first)
	if err != nil || old == nil {
		t.Fatal(old, err)
	}
	if err := store.HandBack(ctx, old, "test"); err != nil {
		t.Fatal(err)
	}
	if err := store.Register(ctx, runs.ExecutorInfo{ID: second, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	var newJob int64
	if err := store.Pool().QueryRow(ctx, `UPDATE executor.river_job SET state = 'running' RETURNING id`).Scan(&newJob); err != nil {
		t.Fatal(err)
	}
	if newJob == job {
		t.Fatal("the handed-back job kept its id")
	}
	if c, verdict, err := store.Claim(ctx, run, job, first); c != nil || verdict != runs.Stray || err != nil {
		t.Errorf("a claim under the old id: %v %v %v", c, verdict, err)
	}
	c, _, err := store.Claim(ctx, run, newJob, second)
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	before := snapshot(t, store, run)
	failed := &runs.StepError{Err: errors.New("late")}
	ledger := store.Ledger(old, "m")
	_, _, reserve := ledger.Reserve(ctx, "fake", sandbox.KeptKey(run.String()))
	for what, err := range map[string]error{
		"succeed": store.Succeed(ctx, old), "fail": store.Fail(ctx, old, failed), "cancelled": store.Cancelled(ctx, old),
		"back off": store.BackOff(ctx, old, failed, c.StartedAt), "hand back": store.HandBack(ctx, old, "again"), "reserve": reserve,
	} {
		if !errors.Is(err, runs.ErrFenced) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after := snapshot(t, store, run); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
	if err := store.Succeed(ctx, c); err != nil {
		t.Fatal(err)
	}
	// The answer of the commit was lost, and it is done again.
	if err := store.Succeed(ctx, c); err != nil {
		t.Errorf("the same end a second time: %v", err)
	}
	if err := store.Fail(ctx, c, failed); !errors.Is(err, runs.ErrFenced) {
		t.Errorf("another end: %v", err)
	}
}

func snapshot(t *testing.T, store *runs.Store, run uuid.UUID) (s string) {
	t.Helper()
	err := store.Pool().QueryRow(context.Background(), `
		SELECT (SELECT runs::text FROM executor.runs WHERE id = $1)
		    || (SELECT string_agg(river_job::text, ';' ORDER BY id) FROM executor.river_job)
		    || (SELECT count(*)::text FROM executor.sandbox_hosts)`, run).Scan(&s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// River repeats a snooze whose answer was lost, after the wait is over and the
// job was claimed again: the run stays its worker's, under an id that no such
// write knows.
func TestALateSnoozeTakesNoRunAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	owner, other := uuid.New(), uuid.New()
	run, job := delivered(t, store, owner)
	c, _, err := store.Claim(ctx, run, job, owner)
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	if err := store.Register(ctx, runs.ExecutorInfo{ID: other, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	// The late write made the job available, and River gave it to another one.
	if _, err := store.Pool().Exec(ctx, `UPDATE executor.river_job SET attempted_by = array_append(attempted_by, $1)`, other); err != nil {
		t.Fatal(err)
	}
	stolen, verdict, err := store.Claim(ctx, run, job, other)
	if stolen != nil || verdict != runs.Stale || err != nil {
		t.Fatalf("claimed under its worker: %+v, %v, %v", stolen, verdict, err)
	}
	var now int64
	var jobState string
	if err := store.Pool().QueryRow(ctx, `SELECT id, state FROM executor.river_job`).Scan(&now, &jobState); err != nil || now == job || jobState != "running" {
		t.Errorf("the job is %d, %s, %v", now, jobState, err)
	}
	if err := store.Succeed(ctx, c); err != nil {
		t.Errorf("its worker: %v", err)
	}
	if err := store.Pool().QueryRow(ctx, `SELECT state FROM executor.river_job`).Scan(&jobState); err != nil || jobState != "completed" {
		t.Errorf("the job is %s, %v", jobState, err)
	}
}
