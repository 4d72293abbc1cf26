package runs

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/sandbox"
)

// URLForTests is set by main_test.go: runstest imports this package, so that
// tests inside it cannot.
var URLForTests func(testing.TB) string

func newTestStore(t testing.TB) *Store {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), URLForTests(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return NewStore(pool, "executor", 15e9, zerolog.Nop())
}

// newLaunch is a claimed run with one recorded launch.
func newLaunch(t testing.TB, s *Store) (*Claim, place) {
	t.Helper()
	ctx := context.Background()
	c := &Claim{ExecutorID: uuid.New(), Epoch: 1, Round: 1}
	p := place{step: "a"}
	if err := s.Register(ctx, ExecutorInfo{ID: c.ExecutorID, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	if err := s.pool.QueryRow(ctx, `SELECT executor.enqueue_run('{"steps": [{"name": "a", "shell": "true"}]}')`).Scan(&c.RunID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(ctx, `UPDATE executor.runs SET status = 'running', epoch = 1, started_at = now(), executor_id = $2 WHERE id = $1`, c.RunID, c.ExecutorID); err != nil {
		t.Fatal(err)
	}
	if err := s.beginAttempt(ctx, c, p, 1); err != nil {
		t.Fatal(err)
	}
	host, _, err := s.Ledger(c, "m").Reserve(ctx, "p", sandbox.KeptKey(c.RunID.String()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.recordLaunch(ctx, c, p, 1, host.ID); err != nil {
		t.Fatal(err)
	}
	return c, p
}
