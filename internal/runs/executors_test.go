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

// The clock by which silence is measured runs while somebody looks, and an
// outage puts a judgement off by no more than it lasts.
func TestTheWatchClock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := runstest.New(t)
	id := uuid.New()
	if err := store.Register(ctx, runs.ExecutorInfo{ID: id, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	watched := func(what string, least, most time.Duration) {
		t.Helper()
		all, err := store.Suspects(ctx, -time.Hour) // everybody
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if got := all[0].Watched; got < least || got > most {
			t.Errorf("%s: %v, want %v to %v", what, got, least, most)
		}
	}
	// past lets a time pass in which nobody looked.
	past := func(d string) {
		t.Helper()
		if _, err := store.Pool().Exec(ctx, `UPDATE executor.housekeeping SET done_at = done_at - $1::interval`, d); err != nil {
			t.Fatal(err)
		}
	}
	look := func() {
		t.Helper()
		if err := store.Look(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const short = time.Second // more than this test takes between two lines
	watched("before the first look", 0, 0)
	look()
	watched("after it", 0, short)
	past("4 s")
	watched("before the next look", 4*time.Second, 4*time.Second+short)
	look()
	watched("after a slow pass", 4*time.Second, 4*time.Second+short)
	past("1 hour")
	watched("in an outage", 9*time.Second, 9*time.Second+short)
	look()
	past("4 s")
	watched("it goes on where it stood", 13*time.Second, 13*time.Second+2*short)
	if err := store.Beat(ctx, id); err != nil {
		t.Fatal(err)
	}
	watched("after a beat", 0, short)
	look()
	watched("and a look", 0, short)
	other := uuid.New()
	if err := store.Register(ctx, runs.ExecutorInfo{ID: other, Machine: "m"}); err != nil {
		t.Fatal(err)
	}
	if err := store.Leave(ctx, id); err != nil {
		t.Fatal(err)
	}
	watched("of one that has just come", 0, short)
}
