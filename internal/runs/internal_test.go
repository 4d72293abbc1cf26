package runs

import (
	"context"
	"testing"
	"time"

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

// Whoever is paused in the middle of what only one may do does not keep the
// others out of it.
func TestAPausedOwnerIsPutOut(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	ctx := context.Background()
	t.Run("of a lock", func(t *testing.T) {
		t.Parallel()
		inside, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- s.Exclusively(ctx, "test", 300*time.Millisecond, func(context.Context) error {
				close(inside)
				<-release // deaf to its context, as a paused process is
				return nil
			})
		}()
		<-inside
		began := time.Now()
		for entered := false; !entered; time.Sleep(10 * time.Millisecond) {
			if err := s.Exclusively(ctx, "test", time.Minute, func(context.Context) error { entered = true; return nil }); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) > 5*time.Second {
				t.Fatal("it is kept out")
			}
		}
		close(release)
		if err := <-ended; err == nil {
			t.Error("who was put out believes that it had the lock to its end")
		}
	})
	t.Run("of a run", func(t *testing.T) {
		t.Parallel()
		c, _ := newLaunch(t, s)
		const lock = `SELECT 1 FROM executor.runs WHERE id = $1 FOR UPDATE`
		paused, err := s.pool.BeginTx(ctx, brief)
		if err != nil {
			t.Fatal(err)
		}
		defer paused.Rollback(ctx)
		if _, err := paused.Exec(ctx, lock, c.RunID); err != nil {
			t.Fatal(err)
		}
		waiting, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if _, err := s.pool.Exec(waiting, lock, c.RunID); err != nil {
			t.Errorf("the run stays locked: %v", err)
		}
	})
}
