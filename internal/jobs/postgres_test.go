package jobs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/runs"
	"executor/internal/sandbox/sandboxtest"
	"executor/migrations"
)

// connect gives the world a store over another way to its database.
func (w *world) connect(change func(*pgxpool.Config)) {
	w.t.Helper()
	config := w.store.Pool().Config()
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	w.store = runs.NewStore(pool, migrations.DefaultSchema, 15*time.Second, zerolog.Nop())
}

const manySteps = `{"sandbox": "kept", "steps": [
	{"name": "a", "shell": "x", "env": {"A": "b"}},
	{"name": "p", "parallel": [{"name": "b", "shell": "x"}, {"name": "c", "shell": "x"}]},
	{"name": "d", "shell": "x"}]}`

// Every way in which pgx can send a query, as a URL's default_query_exec_mode
// chooses it.
func TestEveryQueryMode(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			w.connect(func(c *pgxpool.Config) {
				parsed, err := pgxpool.ParseConfig(addParam(c.ConnString(), "default_query_exec_mode="+mode))
				if err != nil {
					t.Fatal(err)
				}
				*c = *parsed
			})
			w.fake.Script("a", sandboxtest.Proc{Stdout: "\x00\xff{\"x\": \"\\u0000\"}\n{\"x\": \"\\u0000\"}\n"})
			w.fake.Script("d", sandboxtest.Proc{Exit: 3}, sandboxtest.Proc{})
			w.fake.OnCreate(unavailable())
			w.start(w.executor())
			id := w.enqueue(manySteps)
			w.await(id, state{runs.BackingOff, "", "scheduled"})
			w.skipWait(id)
			w.await(id, state{runs.Failed, "command_failed", "discarded"})
			if err := w.store.Retry(context.Background(), id); err != nil {
				t.Fatal(err)
			}
			w.await(id, state{runs.Succeeded, "", "completed"})
			if _, err := w.store.Get(context.Background(), id); err != nil {
				t.Error(err)
			}
			if _, err := w.store.Output(context.Background(), id, 0, 10); err != nil {
				t.Error(err)
			}
			if all, err := w.store.List(context.Background(), runs.Filter{Status: runs.Succeeded}); err != nil || len(all) != 1 {
				t.Error(all, err)
			}
			w.clean()
		})
	}
}

func addParam(url, param string) string {
	if strings.Contains(url, "?") {
		return url + "&" + param
	}
	return url + "?" + param
}

// talker is a process that says what it is told to, when it is told to.
func (w *world) talker(n int) (id uuid.UUID, end chan struct{}) {
	w.t.Helper()
	end = make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Stdout: strings.Repeat("line\n", n), Until: end})
	id = w.enqueue(oneStep)
	w.running(id)
	return id, end
}

// Every connection is terminated, again and again: the run goes on, and so
// does everything after it.
func TestConnectionsAreTerminated(t *testing.T) {
	w := newWorld(t)
	w.start(w.executor())
	id, end := w.talker(1000)
	admin := w.store.Pool().Config().ConnConfig.Copy()
	for range 5 {
		conn, err := connectTo(admin)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
		conn.Close(context.Background())
		time.Sleep(200 * time.Millisecond)
	}
	close(end)
	w.awaitPatiently(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 1, strings.Repeat("line\n", 1000))
	// A run that is enqueued now starts at once: LISTEN is back, or the poll.
	w.fake.Script("b", sandboxtest.Proc{})
	id = w.enqueue(`{"steps": [{"name": "b", "shell": "x"}]}`)
	w.await(id, state{runs.Succeeded, "", "completed"})
}

// Postgres is away for a while, but less than the lease: the process goes on,
// its output is kept and then written, and nobody takes the run away.
func TestPostgresIsAwayForAWhile(t *testing.T) {
	w := newWorld(t)
	way := &line{dial: w.store.Pool().Config().ConnConfig.DialFunc}
	outside := w.store
	w.connect(func(c *pgxpool.Config) { c.ConnConfig.DialFunc = way.connect })
	w.start(w.executor())
	w.store = outside
	id, end := w.talker(1000)
	way.cut()
	close(end)
	time.Sleep(6 * time.Second)
	way.mend()
	w.awaitPatiently(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 1, strings.Repeat("line\n", 1000))
}

// Postgres is away for half a minute, longer than the lease: the executor
// fences itself off and starts afresh, and the run goes on with its process.
// Nobody storms Postgres meanwhile.
func TestPostgresIsAwayForLongerThanTheLease(t *testing.T) {
	w := newWorld(t)
	way := &line{dial: w.store.Pool().Config().ConnConfig.DialFunc}
	outside := w.store
	w.connect(func(c *pgxpool.Config) { c.ConnConfig.DialFunc = way.connect })
	e := w.executor()
	w.store = outside
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() { // as serve does
		defer close(done)
		for ctx.Err() == nil {
			err := e.Run(ctx)
			select {
			case ended <- err:
			default: // only the first end is of interest
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	id, end := w.talker(1000)
	way.cut()
	back := time.After(30 * time.Second)
	if err := <-ended; !errors.Is(err, runs.ErrFenced) {
		t.Errorf("the executor ended with %v", err)
	}
	<-back
	n := way.mend()
	t.Logf("%d connections were tried", n)
	if n > 300 {
		t.Errorf("%d connections were tried in 30 s", n)
	}
	close(end)
	w.awaitPatiently(id, state{runs.Succeeded, "", "completed"})
	w.once(id, 2, strings.Repeat("line\n", 1000))
}

// Writes are refused for a while, as by a standby, or take too long: nothing is
// lost.
func TestPostgresTakesNoWrites(t *testing.T) {
	for name, change := range map[string][2]string{
		"read-only":         {`SET default_transaction_read_only = on`, `RESET default_transaction_read_only`},
		"statement timeout": {`SET statement_timeout = '1ms'`, `RESET statement_timeout`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(w.executor())
			id, end := w.talker(1000)
			database := query[string](w, `SELECT quote_ident(current_database())`)
			set := func(what string) {
				conn, err := connectTo(w.store.Pool().Config().ConnConfig.Copy())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.Background())
				for _, sql := range []string{
					`SET default_transaction_read_only = off`, `SET statement_timeout = 0`, `ALTER DATABASE ` + database + ` ` + what,
					`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
				} {
					if _, err := conn.Exec(context.Background(), sql); err != nil {
						t.Fatal(err)
					}
				}
			}
			set(change[0])
			close(end)
			time.Sleep(3 * time.Second)
			set(change[1])
			w.awaitPatiently(id, state{runs.Succeeded, "", "completed"})
			w.once(id, 1, strings.Repeat("line\n", 1000))
		})
	}
}

// Without LISTEN and without a session, as behind a proxy that pools
// transactions: enqueue, cancel and hand-over work all the same.
func TestPollOnly(t *testing.T) {
	w := newWorld(t)
	end := make(chan struct{})
	w.fake.Script("a", sandboxtest.Proc{Hang: true})
	w.fake.Script("b", sandboxtest.Proc{Stdout: "x\n", Until: end})
	e := w.executor()
	e.Config.PollOnly = true
	stop := w.start(e)
	id := w.enqueue(oneStep)
	w.running(id)
	asked := time.Now()
	waysToCancel["river"](w, id)
	w.await(id, state{runs.Cancelled, "", "cancelled"})
	if took := time.Since(asked); took > 3*time.Second {
		t.Errorf("cancelled after %v", took)
	}
	id = w.enqueue(`{"steps": [{"name": "b", "shell": "x"}]}`)
	w.running(id)
	time.Sleep(5 * time.Second) // past the limit for a lost session
	if n := query[int](w, `SELECT count(*) FROM executor.executors WHERE lost_at IS NOT NULL`); n != 0 {
		t.Error("an executor without a session was judged dead")
	}
	stop()
	e = w.executor()
	e.Config.PollOnly = true
	w.start(e)
	close(end)
	w.await(id, state{runs.Succeeded, "", "completed"})
}
