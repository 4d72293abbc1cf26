package runs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/migrations"
)

const simple = `{"steps": [{"name": "a", "shell": "true"}]}`

func TestEnqueueBySQLRefusesWhatIsNoSpec(t *testing.T) {
	t.Parallel()
	store := runstest.New(t)
	for _, c := range []struct{ args, message string }{
		{`NULL`, "spec: expected a JSON object"},
		{`'[]'`, "spec: expected a JSON object"},
		{`'{}'`, "spec.steps: expected a non-empty array"},
		{`'{"steps": []}'`, "spec.steps: expected a non-empty array"},
		{`'{"steps": {}}'`, "spec.steps: expected a non-empty array"},
		{`'` + simple + `', ''`, "idempotency_key: expected 1 to 255 characters, not all blank"},
		{`'` + simple + `', E' \t'`, "idempotency_key: expected"},
		{`'` + simple + `', repeat('x', 256)`, "idempotency_key: expected"},
		{`'` + simple + `', NULL, ''`, "queue: expected"},
		{`'` + simple + `', NULL, 'a b'`, "queue: expected"},
		{`'` + simple + `', NULL, NULL`, "queue: expected"},
		{`'` + simple + `', NULL, 'default', 5`, "priority: expected 1 (first) to 4"},
	} {
		_, err := store.Pool().Exec(context.Background(), `SELECT executor.enqueue_run(`+c.args+`)`)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Message, c.message) {
			t.Errorf("%.60s: %v", c.args, err)
		}
	}
	var n int
	if err := store.Pool().QueryRow(context.Background(), `SELECT (SELECT count(*) FROM executor.runs) + (SELECT count(*) FROM executor.river_job)`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// The same request twice is one run, also when both come at once, and whatever
// became of it.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	spec, err := runs.ParseSpec([]byte(simple))
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]uuid.UUID, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			var err error
			if ids[i], err = store.Enqueue(ctx, store.Pool(), spec, runs.Options{IdempotencyKey: "k"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := store.Pool().Exec(ctx, `UPDATE executor.runs SET status = 'failed', failure_code = 'internal', failure_message = 'x', finished_at = now()`); err != nil {
		t.Fatal(err)
	}
	again, err := store.Enqueue(ctx, store.Pool(), spec, runs.Options{IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range append(ids, again) {
		if id != ids[0] {
			t.Errorf("several runs: %v", ids)
		}
	}
	spec.Name = "another"
	var pg *pgconn.PgError
	if _, err := store.Enqueue(ctx, store.Pool(), spec, runs.Options{IdempotencyKey: "k"}); !errors.As(err, &pg) || pg.Code != "23505" {
		t.Errorf("another spec under the key: %v", err)
	}
	var jobs int
	if err := store.Pool().QueryRow(ctx, `SELECT count(*) FROM executor.river_job`).Scan(&jobs); err != nil || jobs != 1 {
		t.Errorf("%d jobs, %v", jobs, err)
	}
}

// A committed enqueue wakes executors as River's own client does, also in
// another schema; one that is rolled back wakes nobody and leaves nothing.
func TestEnqueueNotifies(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := runstest.Pool(t, runstest.Empty(t))
	if err := migrations.Up(ctx, pool, "agent_runs", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	listener, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(ctx)
	if _, err := listener.Exec(ctx, `LISTEN "agent_runs.river_insert"`); err != nil {
		t.Fatal(err)
	}
	enqueue := func(commit bool, queue string) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, `SELECT agent_runs.enqueue_run($1, queue => $2)`, simple, queue); err != nil {
			t.Fatal(err)
		}
		if commit {
			err = tx.Commit(ctx)
		} else {
			err = tx.Rollback(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	enqueue(false, "never")
	enqueue(true, "default")
	waitCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n, err := listener.WaitForNotification(waitCtx)
	if err != nil || n.Payload != `{"queue" : "default"}` {
		t.Fatalf("%+v, %v", n, err)
	}
	store := runs.NewStore(pool, "agent_runs", runstest.Lease, zerolog.Nop())
	all, err := store.List(ctx, runs.Filter{})
	if err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Every migration is applied once, whoever comes first.
func TestTenProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := runstest.Empty(t)
	if err := migrations.Check(ctx, runstest.Pool(t, url), "executor"); !errors.Is(err, migrations.ErrPending) {
		t.Errorf("an empty database: %v", err)
	}
	var all sync.WaitGroup
	for range 10 {
		pool := runstest.Pool(t, url)
		all.Go(func() {
			if err := migrations.Up(ctx, pool, "executor", zerolog.Nop()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	pool := runstest.Pool(t, url)
	if err := migrations.Check(ctx, pool, "executor"); err != nil {
		t.Error(err)
	}
	var twice int
	if err := pool.QueryRow(ctx, `SELECT count(*) - count(DISTINCT version_id) FROM executor.goose_db_version`).Scan(&twice); err != nil || twice != 0 {
		t.Errorf("%d migrations ran twice, %v", twice, err)
	}
	var outside []string
	rows, err := pool.Query(ctx, `SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('executor', 'pg_catalog', 'information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	if outside, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(outside) > 0 {
		t.Errorf("tables outside the schema: %v %v", outside, err)
	}
}

// An older program, which knows fewer codes, does not take a newer one's away.
func TestSeedingDeletesNoCode(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	if _, err := store.Pool().Exec(ctx, `INSERT INTO executor.failure_codes VALUES ('from_the_future', NULL, 'never', 'x')`); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Pool().Exec(ctx, `UPDATE executor.failure_codes SET meaning = 'stale' WHERE code = 'internal'`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(ctx, store.Pool(), "executor", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	var future, stale int
	if err := store.Pool().QueryRow(ctx, `SELECT count(*) FILTER (WHERE code = 'from_the_future'), count(*) FILTER (WHERE meaning = 'stale') FROM executor.failure_codes`).Scan(&future, &stale); err != nil || future != 1 || stale != 0 {
		t.Errorf("%d, %d, %v", future, stale, err)
	}
}

// A backend's role needs the two functions and no table; another one has
// neither, and nobody can slip them a table of his own.
func TestABackendNeedsNoTable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	role := "backend_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	admin := func(sql string) {
		t.Helper()
		if _, err := store.Pool().Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	admin(`CREATE ROLE ` + role)
	t.Cleanup(func() { admin(`DROP OWNED BY ` + role); admin(`DROP ROLE ` + role) })
	conn, err := pgx.ConnectConfig(ctx, store.Pool().Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	if _, err := conn.Exec(ctx, `SET ROLE `+role); err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	enqueue := func() error { return conn.QueryRow(ctx, `SELECT executor.enqueue_run($1)`, simple).Scan(&id) }
	if enqueue() == nil {
		t.Error("anybody may enqueue")
	}
	admin(`GRANT USAGE ON SCHEMA executor TO ` + role)
	if enqueue() == nil {
		t.Error("whoever may look may enqueue")
	}
	admin(`GRANT EXECUTE ON FUNCTION executor.enqueue_run, executor.cancel_run TO ` + role)
	if _, err := conn.Exec(ctx, `CREATE TEMPORARY TABLE runs (LIKE pg_class)`); err != nil {
		t.Fatal(err)
	}
	if err := enqueue(); err != nil {
		t.Fatal(err)
	}
	var status string
	if err := conn.QueryRow(ctx, `SELECT executor.cancel_run($1)`, id).Scan(&status); err != nil || status != "cancelled" {
		t.Errorf("%q, %v", status, err)
	}
	if _, err := conn.Exec(ctx, `SELECT FROM executor.runs`); err == nil {
		t.Error("the role reads a table that it was not given")
	}
}
