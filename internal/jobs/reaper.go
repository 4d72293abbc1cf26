package jobs

import (
	"context"
	"errors"
	"time"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

// How long an executor may be the only one that does it.
const (
	passLimit  = 5 * time.Second
	hostsLimit = 5 * time.Minute
)

// reap is the part of an executor's life that cares for what others left
// behind. One executor at a time does it; for the hosts that only one machine
// can reach, one on each machine.
func (l *life) reap(ctx context.Context) {
	r := &reaper{life: l, unknown: map[string]time.Time{}}
	var hosts, swept time.Time
	for every(ctx, l.Config.Reap) {
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn().Err(err).Msg("reaper pass failed")
		}
		if time.Since(hosts) >= l.Config.ReapHosts {
			hosts = time.Now()
			r.reapHosts(ctx)
		}
		if time.Since(swept) >= l.Config.Sweep {
			swept = time.Now()
			r.sweep(ctx)
		}
	}
}

type reaper struct {
	*life
	unknown map[string]time.Time // hosts that the ledger does not know → since when
}

func (r *reaper) pass(ctx context.Context) error {
	err := r.Store.Exclusively(ctx, runs.Housekeeping, passLimit, func(ctx context.Context) error {
		if err := r.judge(ctx); err != nil {
			return err
		}
		if err := r.reconcile(ctx); err != nil {
			return err
		}
		moved, err := r.Store.ReturnFromMachines(ctx, r.Config.Homecoming)
		if moved > 0 {
			r.log.Warn().Int("jobs", moved).Msg("a machine has no executor; its runs go to the others")
		}
		if err != nil {
			return err
		}
		return r.Store.KeepHouse(ctx)
	})
	if err != nil {
		return err
	}
	last, _, err := r.Store.LastPass(ctx)
	if err == nil && !last.IsZero() {
		r.Metrics.lastPass.Set(float64(last.UnixMilli()) / 1000)
	}
	return err
}

// judge marks dead executors: silent for a lease in which somebody looked; or
// without a session for a while, and silent meanwhile, unless Postgres has just
// started and everybody's is gone.
func (r *reaper) judge(ctx context.Context) error {
	if err := r.Store.Look(ctx); err != nil {
		return err
	}
	suspects, err := r.Store.Suspects(ctx, r.Config.Lease)
	if err != nil {
		return err
	}
	for _, s := range suspects {
		silent := r.Config.Lease
		if s.SessionGone >= r.Config.SessionGone && s.ServerAge > r.Config.Lease {
			silent = r.Config.SessionGone
		} else if s.Watched < r.Config.Lease {
			continue
		}
		if s.BeatAge < silent {
			continue
		}
		lost, err := r.Store.MarkLost(ctx, s.ID, silent)
		if err != nil {
			return err
		}
		if lost {
			r.Metrics.lost.Inc()
			r.log.Warn().Stringer("lost", s.ID).Dur("silent_for", s.BeatAge).Msg("an executor is dead")
		}
	}
	return nil
}

// reconcile mends the runs that nobody else looks after.
func (r *reaper) reconcile(ctx context.Context) error {
	seen, err := r.Store.Disagreements(ctx)
	for _, o := range seen {
		r.mend(ctx, o, runs.Reconcile(o.State(), o.JobState, o.Alive, false))
	}
	return err
}

// reapHosts deletes hosts that no run needs and that this machine can reach.
func (r *reaper) reapHosts(ctx context.Context) {
	err := r.Store.Exclusively(ctx, "reaper.hosts."+r.Config.Machine, hostsLimit, func(ctx context.Context) error {
		hosts, err := r.Store.AbandonedHosts(ctx, r.Config.Machine, r.Config.HostGrace, r.Config.CreateGrace)
		if err != nil {
			return err
		}
		left := 0
		for _, h := range hosts {
			err := r.Sandboxes.Delete(ctx, r.Store.ReaperLedger(), h.Entry)
			if err != nil && !errors.Is(err, sandbox.ErrFenced) {
				left++
				r.log.Warn().Err(err).Str("key", string(h.Entry.Key)).Msg("an abandoned host cannot be deleted; trying again")
			}
		}
		r.Metrics.abandoned.Set(float64(left))
		return nil
	})
	if err != nil && ctx.Err() == nil {
		r.log.Warn().Err(err).Msg("looking for abandoned hosts failed")
	}
}

// sweep deletes hosts that are ours and that the ledger does not know: what a
// lost answer, a restored backup or a deleted row left behind. A host must be
// unknown for two looks, for it may be in the making.
func (r *reaper) sweep(ctx context.Context) {
	hosts, err := r.Sandboxes.Marked(ctx)
	if err != nil {
		r.log.Warn().Err(err).Msg("not every provider lists its hosts")
	}
	unknown, err := r.Store.UnknownHosts(ctx, hosts)
	if err != nil {
		return // the next look will tell
	}
	before := r.unknown
	r.unknown = map[string]time.Time{}
	for _, h := range unknown {
		name := h.Provider + "/" + h.ID
		since, seen := before[name]
		if !seen {
			since = time.Now()
		}
		r.unknown[name] = since
		if time.Since(since) < r.Config.HostGrace || !seen {
			continue
		}
		err := r.Sandboxes.DeleteUnknown(ctx, h)
		r.log.Warn().AnErr("failed", err).Str("provider", h.Provider).Str("host_id", h.ID).Str("key", string(h.Key)).Msg("deleted a host that the ledger does not know")
	}
}
