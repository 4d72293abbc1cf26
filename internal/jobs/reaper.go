package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

// reap is the part of an executor's life that cares for what others left
// behind. One executor at a time does it.
func (l *life) reap(ctx context.Context) {
	started := time.Now()
	gone := map[uuid.UUID]time.Time{} // executors without a session → since when
	hosts := time.Now()
	for every(ctx, l.Config.Reap) {
		err := l.Store.Exclusively(ctx, "reaper", func(ctx context.Context) error {
			if err := l.judge(ctx, started, gone); err != nil {
				return err
			}
			return l.reconcile(ctx)
		})
		if err != nil && ctx.Err() == nil {
			// Whoever judges others' silence must not have been cut off itself.
			started = time.Now()
			l.log.Warn().Err(err).Msg("reaper pass failed")
		}
		if time.Since(hosts) >= l.Config.ReapHosts {
			hosts = time.Now()
			l.reapHosts(ctx)
		}
	}
}

// judge marks dead executors: silent for the lease, while we ourselves were
// not; or without a session for a while, and silent meanwhile. After a restart
// of Postgres everybody gets one lease to come back.
func (l *life) judge(ctx context.Context, started time.Time, gone map[uuid.UUID]time.Time) error {
	suspects, err := l.Store.Suspects(ctx, l.Config.Lease)
	if err != nil {
		return err
	}
	seen := map[uuid.UUID]bool{}
	for _, s := range suspects {
		seen[s.ID] = true
		since, known := gone[s.ID]
		if !known {
			since = time.Now()
			gone[s.ID] = since
		}
		silent := l.Config.Lease
		if s.SessionGone && s.ServerAge > l.Config.Lease && time.Since(since) >= l.Config.SessionGone {
			silent = l.Config.SessionGone
		} else if time.Since(started) < l.Config.Lease {
			continue
		}
		if s.BeatAge < silent {
			continue
		}
		lost, err := l.Store.MarkLost(ctx, s.ID, silent)
		if err != nil {
			return err
		}
		if lost {
			l.log.Warn().Stringer("lost", s.ID).Dur("silent_for", s.BeatAge).Msg("an executor is dead")
		}
	}
	for id := range gone {
		if !seen[id] {
			delete(gone, id)
		}
	}
	return nil
}

// reconcile mends the runs that nobody else looks after.
func (l *life) reconcile(ctx context.Context) error {
	seen, err := l.Store.Disagreements(ctx)
	for _, o := range seen {
		l.mend(ctx, o, runs.Reconcile(o.State(), o.JobState, o.Alive, false))
	}
	return err
}

// reapHosts deletes hosts that no run needs and that this machine can reach.
func (l *life) reapHosts(ctx context.Context) {
	err := l.Store.Exclusively(ctx, "reaper.hosts."+l.Config.Machine, func(ctx context.Context) error {
		hosts, err := l.Store.AbandonedHosts(ctx, l.Config.Machine, l.Config.HostGrace, l.Config.CreateGrace)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			err := l.Sandboxes.Delete(ctx, l.Store.ReaperLedger(), h.Entry)
			if err != nil && !errors.Is(err, sandbox.ErrFenced) {
				l.log.Warn().Err(err).Str("key", string(h.Entry.Key)).Msg("an abandoned host cannot be deleted; trying again")
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.log.Warn().Err(err).Msg("looking for abandoned hosts failed")
	}
}
