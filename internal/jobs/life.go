package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"executor/internal/runs"
)

// life is what an executor does beside its runs.
type life struct {
	*Executor
	id  uuid.UUID
	set *workingSet
	log zerolog.Logger
}

// beat returns ErrFenced when the executor was judged dead, or must be so
// soon: it fences itself off before anybody may act on its silence.
func (l *life) beat(ctx context.Context) error {
	last := time.Now()
	for every(ctx, l.Config.Beat) {
		beatCtx, cancel := context.WithTimeout(ctx, l.Config.Beat)
		err := l.Store.Beat(beatCtx, l.id)
		cancel()
		switch {
		case err == nil:
			last = time.Now()
			l.Metrics.lastBeat.SetToCurrentTime()
		case errors.Is(err, runs.ErrFenced):
			l.log.Error().Msg("judged dead by another executor")
			return runs.ErrFenced
		case ctx.Err() == nil && time.Since(last) > l.Config.Lease-2*l.Config.Beat:
			l.log.Error().Err(err).Msg("no sign of life reaches Postgres")
			return runs.ErrFenced
		case ctx.Err() == nil:
			l.log.Warn().Err(err).Msg("missed a beat")
		}
	}
	return nil
}

// holdSession keeps one connection with the executor's lock on it: when the
// process dies, Postgres drops the lock at once, and the others know.
func (l *life) holdSession(ctx context.Context) {
	for first := true; first || every(ctx, time.Second); first = false {
		conn, err := pgx.ConnectConfig(ctx, l.Store.Pool().Config().ConnConfig.Copy())
		if err != nil {
			l.log.Warn().Err(err).Msg("no session")
			continue
		}
		if err = l.Store.HoldSession(ctx, conn, l.id); err == nil {
			for every(ctx, time.Second) {
				if err = conn.Ping(ctx); err != nil {
					break
				}
			}
		}
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		_ = conn.Close(closeCtx)
		cancel()
		if ctx.Err() == nil {
			l.log.Warn().Err(err).Msg("session lost")
		}
	}
}

// watch looks for cancels that no notification brought and for runs that
// became somebody else's; and for runs that are ours though we do not work on
// them.
func (l *life) watch(ctx context.Context) {
	missing := map[int64]time.Time{} // job id → since when
	for every(ctx, l.Config.Watch) {
		news, err := l.Store.Watch(ctx, l.set.list())
		if err != nil {
			continue // beat says what is wrong
		}
		for _, n := range news {
			if n.Fenced {
				l.set.end(n.RunID, runs.ErrFenced)
			} else {
				l.set.end(n.RunID, runs.ErrCancelled)
			}
		}
		l.tidy(ctx, missing)
	}
}

// tidy reconciles the runs that this executor owns.
func (l *life) tidy(ctx context.Context, missing map[int64]time.Time) {
	owned, err := l.Store.OwnedBy(ctx, l.id)
	if err != nil {
		return
	}
	seen := map[int64]bool{}
	for _, o := range owned {
		working := l.set.has(o.RunID)
		if !working {
			since, known := missing[o.JobID]
			if !known {
				since = time.Now()
				missing[o.JobID] = since
			}
			seen[o.JobID] = true
			if time.Since(since) < misplaced {
				continue
			}
		}
		l.mend(ctx, o, runs.Reconcile(o.State(), o.JobState, true, working))
	}
	for job := range missing {
		if !seen[job] {
			delete(missing, job)
		}
	}
}

func (l *life) mend(ctx context.Context, o runs.Observed, a runs.Action) {
	if a == runs.None {
		return
	}
	mended, err := l.Store.Mend(ctx, o, a, l.Config.CrashBudget)
	switch {
	case err != nil:
		l.log.Warn().Err(err).Stringer("run_id", o.RunID).Msg("reconciliation failed; trying again")
	case mended:
		l.Metrics.reconciled.WithLabelValues(string(a)).Inc()
		l.log.Warn().Stringer("run_id", o.RunID).Str("run", string(o.State())).Str("job", o.JobState).Str("action", string(a)).Msg("reconciled")
	}
}

// every waits for d; it is false when ctx ended first.
func every(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
