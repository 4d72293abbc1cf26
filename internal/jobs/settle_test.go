package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// An executor that was stopped wakes after its run was handed over, and its
// worker comes back in every way there is: nothing of the new owner's changes,
// not even by the write that River does with the answer.
func TestAWorkerThatWakesTooLate(t *testing.T) {
	transient := &runs.StepError{Err: faults.New(faults.SandboxLost, "", nil)}
	fatal := &runs.StepError{Err: faults.New(faults.CommandFailed, "", nil)}
	for name, result := range map[string]error{
		"done": nil, "a transient fault": transient, "a fatal fault": fatal, "a bug": errors.New("odd"),
		"cancelled": runs.ErrCancelled, "draining": runs.ErrDraining, "fenced": runs.ErrFenced,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			store := runstest.New(t)
			river := riverpgxv5.New(store.Pool()).GetExecutor()
			fake := sandboxtest.NewFake()
			fetch := func(executor uuid.UUID) (*runs.Claim, *rivertype.JobRow) {
				t.Helper()
				if err := store.Register(ctx, runs.ExecutorInfo{ID: executor, Machine: "m"}); err != nil {
					t.Fatal(err)
				}
				got, err := river.JobGetAvailable(ctx, &riverdriver.JobGetAvailableParams{ClientID: executor.String(), MaxAttemptedBy: 9, MaxToLock: 1, Queue: "default", Schema: "executor"})
				if err != nil || len(got.Jobs) != 1 {
					t.Fatal(got, err)
				}
				var run uuid.UUID
				if err := store.Pool().QueryRow(ctx, `SELECT id FROM executor.runs`).Scan(&run); err != nil {
					t.Fatal(err)
				}
				claim, _, err := store.Claim(ctx, run, got.Jobs[0].ID, executor)
				if err != nil || claim == nil {
					t.Fatal(claim, err)
				}
				return claim, got.Jobs[0]
			}
			if _, err := store.Pool().Exec(ctx, `SELECT executor.enqueue_run('{"steps": [{"name": "a", "shell": "true"}]}')`); err != nil {
				t.Fatal(err)
			}
			sleeper := uuid.New()
			old, oldJob := fetch(sleeper)
			if _, err := store.Pool().Exec(ctx, `UPDATE executor.executors SET lost_at = now()`); err != nil {
				t.Fatal(err)
			}
			seen, err := store.Disagreements(ctx)
			if err != nil || len(seen) != 1 {
				t.Fatal(seen, err)
			}
			if ok, err := store.Mend(ctx, seen[0], runs.Reconcile(seen[0].State(), seen[0].JobState, false, false), 3); !ok || err != nil {
				t.Fatal(ok, err)
			}
			owner, _ := fetch(uuid.New())
			// The new owner has a host, which the old one must leave alone.
			box, err := sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), fake).
				Acquire(ctx, store.Ledger(owner, "m"), "fake", sandbox.HostSpec{Key: sandbox.StepKey(owner.RunID.String(), "a")})
			if err != nil {
				t.Fatal(err)
			}
			defer box.Close()
			before := everything(t, store)

			client := sandbox.NewClient(sandbox.DefaultTimeouts(), zerolog.Nop(), fake)
			w := &worker{
				id: sleeper, store: store, work: newWorkingSet(prometheus.NewGauge(prometheus.GaugeOpts{})), metrics: NewMetrics(prometheus.NewRegistry()), log: zerolog.Nop(),
				runner: &runs.Runner{Store: store, Sandboxes: client, Now: time.Now, Jitter: func() float64 { return 0 }},
			}
			if answer := w.settle(ctx, old, result, zerolog.Nop()); answer != nil {
				t.Errorf("River is told %v", answer)
			}
			write := riverdriver.JobSetStateCompleted(oldJob.ID, time.Now(), nil)
			if _, err := river.JobSetStateIfRunningMany(ctx, &riverdriver.JobSetStateIfRunningManyParams{
				ID: []int64{write.ID}, Attempt: []*int{nil}, ErrData: [][]byte{nil}, FinalizedAt: []*time.Time{write.FinalizedAt},
				MetadataDoMerge: []bool{false}, MetadataUpdates: [][]byte{nil}, ScheduledAt: []*time.Time{nil}, State: []rivertype.JobState{write.State}, Schema: "executor",
			}); err != nil {
				t.Fatal(err)
			}
			if after := everything(t, store); after != before {
				t.Errorf("something changed:\n%s\n%s", before, after)
			}
			if len(fake.Live()) != 1 {
				t.Error("the new owner's host is gone")
			}
		})
	}
}

func everything(t *testing.T, store *runs.Store) (s string) {
	t.Helper()
	err := store.Pool().QueryRow(context.Background(), `
		SELECT (SELECT string_agg(r::text, ';') FROM executor.runs AS r) || (SELECT string_agg(j::text, ';') FROM executor.river_job AS j)
		    || (SELECT string_agg(h::text, ';') FROM executor.sandbox_hosts AS h)`).Scan(&s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
