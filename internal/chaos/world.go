package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	endLimit   = 3 * time.Minute  // after everything is healed, for the last run to end
	cleanLimit = 7 * time.Minute  // after that, for the last host to go: one whose making was killed is given the 5 minutes that a making may take
	termLimit  = 45 * time.Second // from SIGTERM to the end of a process whose grace is 20 s
)

// world is everything there is.
type world struct {
	config    config
	dir, data string
	binary    string
	pg        *postgres
	db        *pgxpool.Pool // past the proxies
	tokens    *tokens
	executors []*executor
	office    *office
	tasks     []*task
	faults    []fault
	began     time.Time

	mu      sync.Mutex
	done    []doneFault
	drains  []time.Duration // from SIGTERM to the end
	failed  []string        // what should not have happened while things were broken
	idle    []int           // goroutines of each executor when nothing has run yet
	after   []int           // and when all is over
	endedIn time.Duration
	cleanIn time.Duration
}

// build starts everything. What it returns with an error is torn down as well.
func build(ctx context.Context, c config, dir string) (*world, error) {
	w := &world{config: c, dir: dir, data: filepath.Join(dir, "data"), binary: filepath.Join(dir, "executor")}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", w.binary, "executor/cmd/executor").CombinedOutput(); err != nil {
		return w, fmt.Errorf("go build: %w\n%s", err, out)
	}
	var err error
	if w.tokens, err = serveTokens(filepath.Join(dir, "tokens")); err != nil {
		return w, err
	}
	if w.pg, err = newPostgres(ctx, dir); err != nil {
		return w, err
	}
	url := w.pg.url(w.pg.port)
	if out, err := exec.CommandContext(ctx, w.binary, "migrate", "up", "--database-url", url).CombinedOutput(); err != nil {
		return w, fmt.Errorf("migrate: %w\n%s", err, out)
	}
	if w.db, err = pgxpool.New(ctx, url); err != nil {
		return w, err
	}
	if w.office, err = openOffice(ctx, w.db); err != nil {
		return w, err
	}
	for i := range c.executors {
		e, err := w.newExecutor(i)
		if err != nil {
			return w, err
		}
		w.executors = append(w.executors, e)
		if err := e.start(); err != nil {
			return w, err
		}
	}
	if err := w.await(ctx, 30*time.Second, "the executors to be ready", w.allReady); err != nil {
		return w, err
	}
	w.idle = w.goroutines(ctx)
	w.tasks = planTasks(c.seed, c, w.tokens.port())
	w.faults = planFaults(c.seed, c)
	return w, nil
}

func (w *world) allReady(ctx context.Context) bool {
	for _, e := range w.executors {
		if !e.ready(ctx) {
			return false
		}
	}
	return true
}

// await asks every half second, and shows how things stand every other time.
func (w *world) await(ctx context.Context, limit time.Duration, what string, ask func(context.Context) bool) error {
	deadline := time.Now().Add(limit)
	for n := 0; ; n++ {
		if ask(ctx) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s", limit, what)
		}
		if n%2 == 1 && !w.began.IsZero() {
			w.progress(ctx)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// storm runs the workload and the faults beside each other.
func (w *world) storm(ctx context.Context) error {
	w.began = time.Now()
	var all sync.WaitGroup
	for _, t := range w.tasks {
		all.Go(func() { w.office.handle(ctx, w, t) })
	}
	for _, f := range w.faults {
		all.Go(func() { w.carryOut(ctx, f) })
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	for {
		select {
		case <-over:
			return ctx.Err()
		case <-time.After(time.Second):
			w.progress(ctx)
		}
	}
}

// heal puts everything right and waits until nothing is left to do.
func (w *world) heal(ctx context.Context) error {
	w.say("healed: everything runs again")
	healed := time.Now()
	for _, e := range w.executors {
		e.signal(syscall.SIGCONT, false)
		if err := errors.Join(e.proxy.heal(), e.ensure()); err != nil {
			return err
		}
	}
	if err := w.await(ctx, endLimit, "every run to end", func(ctx context.Context) bool {
		for _, e := range w.executors {
			_ = e.ensure()
		}
		return w.count(ctx, `SELECT count(*) FROM executor.runs WHERE finished_at IS NULL`) == 0
	}); err != nil {
		w.fail("%v", err)
	}
	w.endedIn = time.Since(healed)
	if err := w.await(ctx, cleanLimit, "every host to be released", func(ctx context.Context) bool {
		return w.count(ctx, `SELECT count(*) FROM executor.sandbox_hosts WHERE state <> 'released'`) == 0 && len(w.hostsLeft()) == 0
	}); err != nil {
		w.fail("%v", err)
	}
	w.cleanIn = time.Since(healed) - w.endedIn
	limit := slices.Max(w.idle) + goroutineSlack
	_ = w.await(ctx, 20*time.Second, "the goroutines to end", func(ctx context.Context) bool {
		w.after = w.goroutines(ctx)
		return slices.Max(w.after) <= limit && slices.Min(w.after) > 0
	})
	for _, e := range w.executors {
		w.term(e)
	}
	return ctx.Err()
}

// goroutineSlack is for connections that come and go.
const goroutineSlack = 15

func (w *world) goroutines(ctx context.Context) []int {
	var n []int
	for _, e := range w.executors {
		n = append(n, e.goroutines(ctx))
	}
	return n
}

// count is -1 where Postgres does not answer.
func (w *world) count(ctx context.Context, query string) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := -1
	if err := w.db.QueryRow(ctx, query).Scan(&n); err != nil {
		return -1
	}
	return n
}

// progress is a line about how things stand.
func (w *world) progress(ctx context.Context) {
	up := 0
	for _, e := range w.executors {
		if e.up() != nil {
			up++
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	state := "postgres does not answer"
	var queued, running, backing, ended int
	if err := w.db.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE status = 'queued'), count(*) FILTER (WHERE status = 'running'),
		       count(*) FILTER (WHERE status = 'backing_off'), count(*) FILTER (WHERE finished_at IS NOT NULL)
		FROM executor.runs`).Scan(&queued, &running, &backing, &ended); err == nil {
		state = fmt.Sprintf("queued %d, running %d, backing off %d, ended %d of %d", queued, running, backing, ended, len(w.tasks))
	}
	w.say("%s; %d processes live, %d of %d executors up", state, w.tokens.living(), up, len(w.executors))
}

func (w *world) say(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// fail notes something that should not have happened.
func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, fmt.Sprintf(format, args...))
}

// tearDown ends everything that was started, whatever state it is in.
func (w *world) tearDown() {
	if w == nil {
		return
	}
	for _, e := range w.executors {
		if p := e.signal(syscall.SIGKILL, true); p != nil {
			<-p.gone
		}
		e.proxy.cut()
		e.log.Close()
	}
	for pid := range leftProcesses(w.data) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if w.office != nil {
		w.office.close()
	}
	if w.db != nil {
		w.db.Close()
	}
	if w.pg != nil {
		if err := w.pg.stop(context.Background(), "immediate"); err != nil && w.db != nil {
			fmt.Println(err)
		}
	}
	if w.tokens != nil {
		w.tokens.close()
	}
}
