package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/sandbox"
	"executor/migrations"
)

// The benchmarks behind "make bench": real Postgres, real processes. They
// report percentiles in ms.

// BenchmarkEnqueueToStart is the time from enqueueing a run to the first
// command of its process, on an idle executor.
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
	for i := -3; i < b.N; i++ { // a few to warm up
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

// BenchmarkFirstCommand is the time from asking for a host to the end of the
// first command in it.
func BenchmarkFirstCommand(b *testing.B) {
	for _, mode := range []string{"bwrap", "plain"} {
		b.Run("local-"+mode, func(b *testing.B) {
			ctx := context.Background()
			a := newApp(globals{DataDir: b.TempDir(), LogLevel: "error"}, stdio{nil, io.Discard, os.Stderr})
			provider, err := a.localProvider(ctx, isolation{Isolation: mode}, b.TempDir(), "bench", nil)
			fatal(b, err)
			client := sandbox.NewClient(sandbox.DefaultTimeouts(), a.log, provider)
			measure(b, func() {
				run, ledger := uuid.NewString(), &memoryLedger{}
				box, err := client.Acquire(ctx, ledger, provider.Name(), sandbox.HostSpec{Key: sandbox.StepKey(run, "s"), RunID: run})
				fatal(b, err)
				exit, err := box.Exec(ctx, sandbox.Command{Argv: []string{"true"}}, sandbox.Stdio{})
				fatal(b, err)
				if !exit.Success() {
					b.Fatal(exit)
				}
				b.Cleanup(func() { client.Release(ctx, ledger, box.Entry()); _ = box.Close() })
			})
		})
	}
	b.Run("bare-bwrap", func(b *testing.B) {
		measure(b, func() {
			fatal(b, exec.Command("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true").Run())
		})
	})
	b.Run("bare-process", func(b *testing.B) {
		measure(b, func() { fatal(b, exec.Command("true").Run()) })
	})
}

func measure(b *testing.B, do func()) {
	var took []time.Duration
	for range b.N {
		begun := time.Now()
		do()
		took = append(took, time.Since(begun))
	}
	percentiles(b, "first", took)
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
