package jobs_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
	"executor/migrations"
)

const oneStep = `{"steps": [{"name": "a", "shell": "true"}]}`

func (w *world) running(id uuid.UUID) {
	w.t.Helper()
	w.eventually(func() bool {
		return query[int](w, `SELECT count(*) FROM executor.run_launches WHERE run_id = $1 AND started_at IS NOT NULL AND ended_at IS NULL`, id) == 1
	}, func() any { return w.state(id) }, "a process")
}

func (w *world) output(id uuid.UUID) string {
	w.t.Helper()
	return query[string](w, `SELECT coalesce(string_agg(convert_from(data, 'UTF8'), '' ORDER BY seq), '') FROM executor.run_output WHERE run_id = $1`, id)
}

// once checks that the run's step ran once, though several executors worked
// on it.
func (w *world) once(id uuid.UUID, epoch int64, output string) {
	w.t.Helper()
	if n := len(w.fake.Started()); n != 1 {
		w.t.Errorf("%d starts", n)
	}
	if got := query[int64](w, `SELECT epoch FROM executor.runs WHERE id = $1`, id); got != epoch {
		w.t.Errorf("epoch %d, want %d", got, epoch)
	}
	if n := query[int](w, `SELECT count(*) FROM executor.run_attempts WHERE run_id = $1`, id); n != 1 {
		w.t.Errorf("%d attempts", n)
	}
	if got := w.output(id); got != output {
		w.t.Errorf("output %q, want %q", got, output)
	}
}

// A deploy: the executor lets go, its job goes back unspent, and the next one
// goes on with the same process.
func TestADeployKillsNoProcess(t *testing.T) {
	w := newWorld(t)
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Until: end})
	stop := w.start(w.executor())
	id := w.enqueue(oneStep)
	w.running(id)
	w.eventually(func() bool { return w.output(id) != "" }, func() any { return w.output(id) }, "its output")
	stop()
	if got := w.state(id); got.Status != runs.Running || got.Job != "available" {
		t.Fatalf("after the drain: %+v", got)
	}
	if n := query[int](w, `SELECT attempt FROM executor.river_job`); n != 0 {
		t.Errorf("the hand-over cost %d attempts", n)
	}
	if n := query[int](w, `SELECT count(*) FROM executor.executors WHERE stopped_at IS NULL`); n != 0 {
		t.Error("the executor did not sign off")
	}
	w.start(w.executor())
	w.eventually(func() bool { return w.state(id).Job == "running" }, func() any { return w.state(id) }, "the next executor")
	close(end)
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 2, "hello\n")
	w.clean()
}

// A process that ended while nobody looked is read to its end by the next
// executor.
func TestAProcessEndsBetweenTwoExecutors(t *testing.T) {
	w := newWorld(t)
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Until: end})
	stop := w.start(w.executor())
	id := w.enqueue(oneStep)
	w.running(id)
	stop()
	close(end)
	w.start(w.executor())
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 2, "hello\n")
}

// startDoomed runs an executor that is cut off from Postgres, connections and
// all, when die is called: to the others it looks dead.
func (w *world) startDoomed(e *jobs.Executor) (die func()) {
	w.t.Helper()
	return w.startOn(e).cut
}

// startOn runs an executor on a way to Postgres of its own.
func (w *world) startOn(e *jobs.Executor) *line {
	w.t.Helper()
	config := w.store.Pool().Config()
	line := &line{dial: config.ConnConfig.DialFunc}
	config.ConnConfig.DialFunc = line.connect
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	e.Store = runs.NewStore(pool, migrations.DefaultSchema, time.Second, zerolog.Nop())
	e.Runner.Store = e.Store
	e.Config.Grace = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = e.Run(ctx); close(done) }()
	w.t.Cleanup(func() { cancel(); <-done; pool.Close() })
	return line
}

// line is a way to Postgres that can be cut, or swallow everything.
type line struct {
	dial  pgconn.DialFunc
	mu    sync.Mutex
	down  bool
	tries int // while it was down
	conns []net.Conn
	pass  sync.RWMutex // locked: nothing gets through, and nobody is told
}

type lineConn struct {
	net.Conn
	line *line
}

func (c lineConn) Write(p []byte) (int, error) {
	c.line.pass.RLock()
	defer c.line.pass.RUnlock()
	return c.Conn.Write(p)
}

func (l *line) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		l.tries++
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	conn, err := l.dial(ctx, network, addr)
	if err == nil {
		l.conns = append(l.conns, conn)
		conn = lineConn{conn, l}
	}
	return conn, err
}

func (l *line) mend() (tries int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
	return l.tries
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, conn := range l.conns {
		conn.Close()
	}
}

// An executor dies: the others notice within five seconds, hand its run on,
// and go on with the process.
func TestADeadExecutorIsNoticed(t *testing.T) {
	w := newWorld(t)
	// Postgres has to be up for a lease before a missing session counts.
	w.eventually(func() bool { return query[bool](w, `SELECT now() - pg_postmaster_start_time() > interval '16 s'`) }, func() any { return nil }, "a settled server")
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Until: end})
	dying := w.startDoomed(w.executor())
	id := w.enqueue(oneStep)
	w.running(id)
	w.eventually(func() bool { return w.output(id) != "" }, func() any { return w.output(id) }, "its output")
	w.start(w.executor())
	died := time.Now()
	dying()
	w.eventually(func() bool { return query[int64](w, `SELECT epoch FROM executor.runs WHERE id = $1`, id) == 2 }, func() any { return w.state(id) }, "another executor")
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("noticed after %v", took)
	}
	close(end)
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 2, "hello\n")
	if n := query[int](w, `SELECT crashes FROM executor.runs WHERE id = $1`, id); n != 0 {
		t.Errorf("%d crashes are charged though the step ended", n)
	}
	w.clean()
}

// An executor falls silent, though its connections stay: the others notice
// within 15 seconds, and when it wakes nothing of the run is its own any more.
func TestASilentExecutorIsNoticed(t *testing.T) {
	w := newWorld(t)
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Until: end})
	silent := w.startOn(w.executor())
	id := w.enqueue(oneStep)
	w.running(id)
	w.eventually(func() bool { return w.output(id) != "" }, func() any { return w.output(id) }, "its output")
	time.Sleep(16 * time.Second) // somebody must have looked for as long
	w.start(w.executor())
	silent.pass.Lock()
	fell := time.Now()
	owned := func() bool { return query[int64](w, `SELECT epoch FROM executor.runs WHERE id = $1`, id) == 2 }
	for !owned() && time.Since(fell) < 20*time.Second {
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(fell); took > 15*time.Second {
		t.Errorf("noticed after %v", took)
	}
	silent.pass.Unlock()
	time.Sleep(time.Second) // for what it still has to say
	if got := w.state(id); got != (state{runs.Running, "", "running"}) || !owned() {
		t.Errorf("after it woke: %+v", got)
	}
	close(end)
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 2, "hello\n")
	w.clean()
}

// A run that kills executors is given up.
func TestTheCrashBudget(t *testing.T) {
	w := newWorld(t)
	w.eventually(func() bool { return query[bool](w, `SELECT now() - pg_postmaster_start_time() > interval '16 s'`) }, func() any { return nil }, "a settled server")
	w.fake.Script("a", sandboxtest.Proc{Hang: true})
	id := w.enqueue(oneStep)
	for n := 1; n <= 4; n++ {
		dying := w.startDoomed(w.executor())
		w.eventually(func() bool { return query[int64](w, `SELECT epoch FROM executor.runs WHERE id = $1`, id) == int64(n) }, func() any { return w.state(id) }, n)
		dying()
	}
	w.start(w.executor())
	w.await(id, state{runs.Failed, "executor_lost", "discarded"})
	w.clean()
}

// Only the machine that has the host continues the run; the others get it
// when the machine stays away.
func TestAHostOfAnotherMachine(t *testing.T) {
	w := newWorld(t)
	w.fake.Machine = "m1"
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: "hello\n", Until: end}, sandboxtest.Proc{Stdout: "again\n"})
	stop := w.start(w.executor())
	id := w.enqueue(oneStep)
	w.running(id)
	stop()

	other := w.executor()
	other.Config.Machine, other.Runner.Machine = "m2", "m2"
	other.Config.Homecoming = 3 * time.Second
	w.start(other)
	time.Sleep(1500 * time.Millisecond) // a claim would have come at once
	if got := w.state(id); got.Job != "available" {
		t.Fatalf("another machine took the run: %+v", got)
	}
	stop = w.start(w.executor())
	w.eventually(func() bool { return w.state(id).Job == "running" }, func() any { return w.state(id) }, "its own machine")
	stop()
	// Its machine does not come back, and the host with it.
	w.fake.Vanish(sandbox.StepKey(id.String(), "a"))
	w.await(id, state{runs.BackingOff, "", "scheduled"})
	if a := w.attempts(id); a[0].Code != "sandbox_not_found" {
		t.Errorf("%+v", a)
	}
	w.skipWait(id)
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.clean()
}

// Hosts that the ledger does not know are deleted; those it knows are not.
func TestUnknownHostsAreSwept(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("a", sandboxtest.Proc{Hang: true})
	if _, err := w.fake.Create(context.Background(), sandbox.HostSpec{Key: "stray:a"}); err != nil {
		t.Fatal(err)
	}
	e := w.executor()
	e.Config.Sweep = 300 * time.Millisecond
	w.start(e)
	id := w.enqueue(oneStep)
	w.running(id)
	w.eventually(func() bool { return len(w.fake.Live()) == 1 }, func() any { return w.fake.Live() }, "one host")
	time.Sleep(time.Second)
	if live := w.fake.Live(); len(live) != 1 || live[0].Key != sandbox.StepKey(id.String(), "a") {
		t.Errorf("%+v", live)
	}
	w.cancel(id)
	w.await(id, state{runs.Cancelled, "", "cancelled"})
}

// An executor dies between the record that a command failed and what comes of
// it: the next one decides, and does not run the command again.
func TestAFailureIsDecidedByTheNextExecutor(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want state
	}{
		"a step":   {oneStep, state{runs.Failed, "command_failed", "discarded"}},
		"a member": {`{"steps": [{"name": "p", "parallel": [{"name": "a", "shell": "x"}, {"name": "b", "shell": "y"}]}]}`, state{runs.Failed, "command_failed", "discarded"}},
		"a retry":  {`{"retry": {"include": ["command_failed"], "delays": ["1h"]}, "steps": [{"name": "a", "shell": "x"}]}`, state{runs.BackingOff, "", "scheduled"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			end := make(chan struct{})
			w.fake.Script("a", sandboxtest.Proc{Exit: 3, Until: end})
			w.fake.Script("p+a", sandboxtest.Proc{Exit: 3, Until: end})
			other := make(chan struct{})
			w.fake.Script("p+b", sandboxtest.Proc{Until: other})
			stop := w.start(w.executor())
			id := w.enqueue(c.spec)
			w.eventually(func() bool { return len(w.fake.Started()) > 0 }, func() any { return w.state(id) }, "a process")
			stop()
			// As far as the last executor came.
			if _, err := w.store.Pool().Exec(context.Background(), `
				WITH failed AS (
				    UPDATE executor.run_attempts SET ended_at = now(), outcome = 'failed', failure_code = 'command_failed', exit_code = 3,
				        causes = '[{"code": "command_failed", "message": "command_failed: the command ended with exit status 3"}]'
				    WHERE run_id = $1 AND (step = 'a' OR member = 'a')
				)
				UPDATE executor.run_launches SET ended_at = now(), exit_code = 3 WHERE run_id = $1 AND (step = 'a' OR member = 'a')`, id); err != nil {
				t.Fatal(err)
			}
			close(end)
			w.start(w.executor())
			if name == "a member" { // the other one goes on
				w.eventually(func() bool { return w.state(id).Job == "running" }, func() any { return w.state(id) }, "the next executor")
				close(other)
			}
			w.await(id, c.want)
			for _, l := range w.fake.Started() {
				if l.N > 1 && (l.Step == "a" || l.Member == "a") {
					t.Errorf("the command was run again: %+v", l)
				}
			}
		})
	}
}

// slowToListen is a connection on which the statement that River begins with
// takes longer than it waits.
type slowToListen struct{}

func (slowToListen) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(q.SQL, "LISTEN") {
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
	}
	return ctx
}

func (slowToListen) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A connection that is too slow for River is no mistake of anybody's: the
// executor may be started again.
func TestAStartOnASlowConnection(t *testing.T) {
	w := newWorld(t)
	config := w.store.Pool().Config()
	config.ConnConfig.Tracer = slowToListen{}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	e := w.executor()
	e.Store = runs.NewStore(pool, w.store.Schema(), runstest.Lease, zerolog.Nop())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.Run(ctx); !errors.Is(err, jobs.ErrNotStarted) {
		t.Errorf("got %v", err)
	}
	e = w.executor()
	stop := w.start(e)
	stop()
}
