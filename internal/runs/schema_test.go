package runs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"executor/internal/runs/runstest"
)

// Each of these rows would be a lie; the schema itself refuses it.
func TestImpossibleRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	const run = `(SELECT id FROM executor.runs LIMIT 1)`
	setup := []string{
		`SELECT executor.enqueue_run('{"steps": [{"name": "a", "shell": "true"}]}')`,
		`INSERT INTO executor.executors (id, machine, hostname, version, pid) VALUES ('00000000-0000-0000-0000-000000000001', 'm', 'h', 'v', 1)`,
		`INSERT INTO executor.run_steps (run_id, name, position) VALUES (` + run + `, 'a', 0)`,
		`INSERT INTO executor.sandbox_hosts (run_id, key, provider, epoch) VALUES (` + run + `, 'k:a', 'p', 1)`,
	}
	for _, sql := range setup {
		if _, err := store.Pool().Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	const (
		check, foreign, unique, null = "23514", "23503", "23505", "23502"
		set                          = `UPDATE executor.runs SET `
		attempt                      = `INSERT INTO executor.run_attempts (run_id, step, n, round, epoch, executor_id, `
		attemptValues                = ` VALUES (` + run + `, 'a', 1, 1, 1, '00000000-0000-0000-0000-000000000001', `
		host                         = `INSERT INTO executor.sandbox_hosts (run_id, key, provider, epoch, `
	)
	for _, c := range []struct{ name, code, sql string }{
		{"failed without a code", check, set + `status = 'failed', finished_at = now(), failure_message = 'x'`},
		{"failed with an empty code", check, set + `status = 'failed', finished_at = now(), failure_message = 'x', failure_code = ''`},
		{"failed with an unknown code", foreign, set + `status = 'failed', finished_at = now(), failure_message = 'x', failure_code = 'no_such_code'`},
		{"failed without a message", check, set + `status = 'failed', finished_at = now(), failure_code = 'internal'`},
		{"failed with an empty message", check, set + `status = 'failed', finished_at = now(), failure_code = 'internal', failure_message = ''`},
		{"succeeded with a code", check, set + `status = 'succeeded', finished_at = now(), failure_code = 'internal', failure_message = 'x'`},
		{"succeeded and not finished", check, set + `status = 'succeeded'`},
		{"queued and finished", check, set + `finished_at = now()`},
		{"unknown status", check, set + `status = 'paused'`},
		{"backing off without a time", check, set + `status = 'backing_off'`},
		{"queued with a retry time", check, set + `retry_at = now()`},
		{"owned and not running", check, set + `executor_id = '00000000-0000-0000-0000-000000000001'`},
		{"running and never started", check, set + `status = 'running'`},
		{"running under epoch 0", check, set + `status = 'running', started_at = now()`},
		{"owned by nobody known", foreign, set + `status = 'running', started_at = now(), epoch = 1, executor_id = gen_random_uuid()`},
		{"cancelled though nobody asked", check, set + `status = 'cancelled', finished_at = now()`},
		{"a failed step of a run that has not failed", check, set + `failed_step = 'a'`},
		{"a blank idempotency key", check, set + `idempotency_key = E' \t'`},
		{"a spec that is no object", check, set + `spec = '[]'`},
		{"a run without a job", null, set + `job_id = NULL`},
		{"negative epoch", check, set + `epoch = -1`},
		{"attempt failed without a code", check, attempt + `outcome, ended_at)` + attemptValues + `'failed', now())`},
		{"attempt failed without causes", check, attempt + `outcome, ended_at, failure_code)` + attemptValues + `'failed', now(), 'internal')`},
		{"attempt succeeded with a code", check, attempt + `outcome, ended_at, failure_code, causes)` + attemptValues + `'succeeded', now(), 'internal', '[]')`},
		{"attempt ended without an outcome", check, attempt + `ended_at)` + attemptValues + `now())`},
		{"attempt with an outcome that goes on", check, attempt + `outcome)` + attemptValues + `'succeeded')`},
		{"attempt of no step", foreign, `INSERT INTO executor.run_attempts (run_id, step, n, round, epoch, executor_id) VALUES (` + run + `, 'b', 1, 1, 1, '00000000-0000-0000-0000-000000000001')`},
		{"two open launches of one step", unique, `INSERT INTO executor.run_launches (run_id, step, n, host) SELECT ` + run + `, 'a', n, id FROM executor.sandbox_hosts, generate_series(1, 2) AS n`},
		{"a launch that exited and goes on", check, `INSERT INTO executor.run_launches (run_id, step, n, host, exit_code) SELECT ` + run + `, 'a', 1, id, 0 FROM executor.sandbox_hosts`},
		{"a signal without a code", check, `INSERT INTO executor.run_launches (run_id, step, n, host, ended_at, exit_signal) SELECT ` + run + `, 'a', 1, id, now(), 'SIGKILL' FROM executor.sandbox_hosts`},
		{"two live hosts of one key", unique, host + `state) VALUES (` + run + `, 'k:a', 'p', 1, 'creating')`},
		{"an active host without an id", check, host + `state) VALUES (` + run + `, 'k:b', 'p', 1, 'active')`},
		{"a released host without a time", check, host + `state) VALUES (` + run + `, 'k:b', 'p', 1, 'released')`},
		{"a host key with a space", check, `UPDATE executor.sandbox_hosts SET key = 'a b'`},
		{"a finished step that is running", check, `UPDATE executor.run_steps SET finished_at = now()`},
		{"a result of a step that did not succeed", check, `UPDATE executor.run_steps SET result = '{}'`},
		{"a step with a slash", check, `UPDATE executor.run_steps SET name = 'a/b'`},
	} {
		err := pgx.BeginFunc(ctx, store.Pool(), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, c.sql)
			if err == nil {
				t.Errorf("%s: accepted", c.name)
				return errors.New("undo")
			}
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code != c.code {
			t.Errorf("%s: refused with %s (%s), not %s", c.name, pg.Code, pg.Message, c.code)
		}
	}
}
