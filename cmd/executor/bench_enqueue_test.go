package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/migrations"
)

// The benchmarks behind "make bench": real Postgres, real processes. Each knows
// for itself how often it has to measure, so they run with -benchtime 1x.

// BenchmarkEnqueueToStart is the time from enqueueing a run to the first
// command of its process, on an idle executor, in percentiles.
func BenchmarkEnqueueToStart(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := newApp(globals{Schema: migrations.DefaultSchema, DataDir: b.TempDir(), LogLevel: "error"}, stdio{nil, io.Discard, os.Stderr})
	cfg := serving{Workers: 50, Queues: []string{"default"}, Grace: 10 * time.Second, OutputCap: 1 << 20, isolation: isolation{Isolation: "auto"}, providing: providing{Providers: []string{"local"}}}
	db, err := a.openPrivate(ctx, poolSize(cfg.Workers))
	fatal(b, err)
	b.Cleanup(func() { _ = db.close(); removePostgres(a.DataDir) })
	fatal(b, migrations.Up(ctx, db.pool, a.Schema, a.log))
	listener, err := listen(ctx, "127.0.0.1:0", false)
	fatal(b, err)
	s, err := a.wire(ctx, cfg, db, listener)
	fatal(b, err)
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx) }()

	// date prints when it runs, by the same clock.
	spec := runs.Spec{Steps: []runs.Step{{Name: "now", Argv: []string{"date", "+%s%N"}}}}
	var took, whole []time.Duration
	for i := -3; i < 200; i++ { // a few to warm up
		begun := time.Now()
		id, err := enqueue(ctx, s.store, spec, runs.Options{})
		fatal(b, err)
		started := startedAt(b, s.store, id)
		if i >= 0 {
			took = append(took, started.Sub(begun))
			whole = append(whole, time.Since(begun))
		}
	}
	cancel()
	fatal(b, <-served)
	percentiles(b, "start", took)
	percentiles(b, "end", whole)
}

// startedAt waits for the run's end and reads when its process ran.
func startedAt(b *testing.B, store *runs.Store, id uuid.UUID) time.Time {
	for {
		summary, err := store.Summary(context.Background(), id)
		fatal(b, err)
		if summary.Status == runs.Succeeded {
			break
		}
		if summary.Status.Terminal() {
			b.Fatalf("the run has %s: %s", summary.Status, summary.FailureMessage)
		}
		time.Sleep(2 * time.Millisecond)
	}
	chunks, err := store.Output(context.Background(), id, 0, 10)
	fatal(b, err)
	nanos, err := strconv.ParseInt(strings.TrimSpace(string(chunks[0].Data)), 10, 64)
	fatal(b, err)
	return time.Unix(0, nanos)
}

func percentiles(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[min(len(took)*p/100, len(took)-1)].Microseconds())/1000, what+"-p"+strconv.Itoa(p)+"-ms")
	}
	b.ReportMetric(0, "ns/op") // an average says nothing here
}

func fatal(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}
