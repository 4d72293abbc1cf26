package runs_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

// Since when a session is gone is known to whoever judges, though it has only
// begun to look.
func TestTheLossOfASessionIsShared(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one := runstest.New(t)
	other := runs.NewStore(one.Pool(), one.Schema(), runstest.Lease, runstest.Log(t))
	id := uuid.New()
	if err := one.Register(ctx, runs.ExecutorInfo{ID: id, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	suspects := func(s *runs.Store) []runs.Suspect {
		t.Helper()
		all, err := s.Suspects(ctx, runstest.Lease)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	hold := func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.ConnectConfig(ctx, one.Pool().Config().ConnConfig.Copy())
		if err != nil {
			t.Fatal(err)
		}
		if err := one.HoldSession(ctx, conn, id); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	if all := suspects(one); len(all) != 0 {
		t.Errorf("one that never had a session: %+v", all)
	}
	for range 2 {
		conn := hold()
		if all := suspects(one); len(all) != 0 {
			t.Errorf("one that holds its session: %+v", all)
		}
		conn.Close(ctx)
		var first []runs.Suspect
		for range 100 { // until Postgres has noticed
			if first = suspects(one); len(first) > 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if len(first) != 1 || first[0].ID != id || first[0].SessionGone != 0 {
			t.Fatalf("the first look: %+v", first)
		}
		time.Sleep(50 * time.Millisecond)
		if all := suspects(other); len(all) != 1 || all[0].SessionGone < 50*time.Millisecond {
			t.Errorf("another one's look: %+v", all)
		}
	}
	// It came back, and nobody has looked since.
	hold().Close(ctx)
	for range 100 {
		if all := suspects(other); len(all) == 1 {
			if all[0].SessionGone != 0 {
				t.Errorf("a loss before is held against it: %+v", all)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("its second loss was not seen")
}

// How long it was looked for dead ones is known to whoever looks, and begins
// anew after a gap.
func TestPassesWithoutAGap(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	if err := store.Register(ctx, runs.ExecutorInfo{ID: uuid.New(), Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	watched := func() time.Duration {
		t.Helper()
		all, err := store.Suspects(ctx, -time.Hour) // everybody
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all[0].Watched
	}
	pass := func(last string) {
		t.Helper()
		if _, err := store.Pool().Exec(ctx, `UPDATE executor.housekeeping SET since = now() - interval '1 hour', done_at = now() - $1::interval`, last); err != nil {
			t.Fatal(err)
		}
		if err := store.KeepHouse(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := watched(); got != 0 {
		t.Errorf("before the first pass: %v", got)
	}
	pass("0")
	if got := watched(); got > time.Minute {
		t.Errorf("after the first: %v", got)
	}
	pass("6 s")
	if got := watched(); got < time.Hour {
		t.Errorf("without a gap: %v", got)
	}
	if _, err := store.Pool().Exec(ctx, `UPDATE executor.housekeeping SET done_at = now() - interval '9 s'`); err != nil {
		t.Fatal(err)
	}
	if got := watched(); got != 0 {
		t.Errorf("in a gap: %v", got)
	}
	pass("9 s")
	if got := watched(); got > time.Minute {
		t.Errorf("after a gap: %v", got)
	}
}
