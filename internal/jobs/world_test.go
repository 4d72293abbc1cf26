package jobs_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/rs/zerolog"

	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// world is a database, a scripted provider and, once started, executors.
type world struct {
	t     *testing.T
	store *runs.Store
	fake  *sandboxtest.Fake
	river *river.Client[pgx.Tx]
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, store: runstest.New(t), fake: sandboxtest.NewFake()}
	var err error
	if w.river, err = jobs.NewInspector(w.store, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	return w
}

// executor describes an executor of the world's.
func (w *world) executor() *jobs.Executor {
	log := runstest.Log(w.t).Level(zerolog.InfoLevel)
	client := sandbox.NewClient(sandbox.DefaultTimeouts(), log, w.fake)
	config := jobs.DefaultConfig()
	config.Machine = "m1"
	config.Grace = 10 * time.Second
	config.ReapHosts = time.Second
	config.HostGrace, config.CreateGrace = 0, 0
	return &jobs.Executor{
		Config: config, Store: w.store, Sandboxes: client, Log: log, Metrics: jobs.NewMetrics(prometheus.NewRegistry()),
		Runner: &runs.Runner{
			Store: w.store, Sandboxes: client, Provider: w.fake.Name(), Machine: "m1", OutputCap: 1 << 20, Log: log,
			Now: time.Now, Jitter: func() float64 { return 0.5 },
		},
	}
}

// start runs an executor until stop is called, or the test ends.
func (w *world) start(e *jobs.Executor) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	var once sync.Once
	e.Ready = func(is bool) {
		if is {
			once.Do(func() { close(ready) })
		}
	}
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	select {
	case <-ready:
	case err := <-done:
		w.t.Fatalf("the executor did not start: %v", err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the executor ended with %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) enqueue(spec string) uuid.UUID {
	w.t.Helper()
	parsed, err := runs.ParseSpec([]byte(spec))
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := w.store.Enqueue(context.Background(), w.store.Pool(), parsed, runs.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// state is what a run and its job look like together.
type state struct {
	Status runs.Status
	Code   string
	Job    string
}

func (w *world) state(id uuid.UUID) (s state) {
	w.t.Helper()
	err := w.store.Pool().QueryRow(context.Background(), `
		SELECT run.status, coalesce(failure_code, ''), coalesce(job.state::text, 'missing')
		FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id WHERE run.id = $1`, id).
		Scan(&s.Status, &s.Code, &s.Job)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// await waits until the run and its job are as wanted.
func (w *world) await(id uuid.UUID, want state) {
	w.t.Helper()
	w.eventually(func() bool { return w.state(id) == want }, func() any { return w.state(id) }, want)
}

// awaitPatiently is await over a database that is away meanwhile.
func (w *world) awaitPatiently(id uuid.UUID, want state) {
	w.t.Helper()
	var got state
	w.eventually(func() bool {
		err := w.store.Pool().QueryRow(context.Background(), `
			SELECT run.status, coalesce(failure_code, ''), coalesce(job.state::text, 'missing')
			FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id WHERE run.id = $1`, id).
			Scan(&got.Status, &got.Code, &got.Job)
		return err == nil && got == want
	}, func() any { return got }, want)
}

func connectTo(config *pgx.ConnConfig) (*pgx.Conn, error) {
	return pgx.ConnectConfig(context.Background(), config)
}

func (w *world) eventually(ok func() bool, got func() any, want any) {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain:\n got %+v\nwant %+v", got(), want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// query reads one value.
func query[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}
