package runs

import (
	"context"
	"errors"
	"time"

	"executor/internal/sandbox"
)

// leaseMargin is what a lease covers besides a step's time limit and the grace
// of stopping it: files go up before, results come down after.
const leaseMargin = time.Minute

// ready opens the sandbox of a place for a step that is about to start, on a
// host whose lease covers it. A host whose lease cannot is rotated: deleted, and
// a fresh one made under its key. It stays where a process of the run may live
// in it; then what lease there is has to do.
func (x *execution) ready(ctx context.Context, p place, step Step) (*sandbox.Sandbox, error) {
	box, err := x.acquire(ctx, p)
	if err != nil {
		return nil, err
	}
	err = box.Cover(ctx, x.neededUntil(ctx, step))
	if err == nil {
		return box, nil
	}
	log := x.log.With().Str("step", p.step).Str("member", p.member).Str("host_id", box.Host().ID).Time("expires_at", box.Host().ExpiresAt).Logger()
	// The steps before have ended; the other members of this one may have begun.
	if x.claim.history.occupied(box.Entry().ID, p.step) || p.member != "" && x.spec.Kept() {
		log.Info().Err(err).Msg("the host's lease may be too short for the step")
		return box, nil
	}
	_ = box.Close()
	x.kept = nil
	if !errors.Is(err, sandbox.ErrShortLease) {
		return nil, err
	}
	log.Info().Msg("the host's lease is too short for the step; it makes way for a fresh one")
	x.Sandboxes.Release(ctx, x.ledger, box.Entry())
	return x.ready(ctx, p, step) // a fresh host's lease is not found short a second time
}

// neededUntil is until when a step that starts now needs its host at the least.
// A step without a time limit has its lease renewed while it is followed.
func (x *execution) neededUntil(ctx context.Context, step Step) time.Time {
	end := x.Now().Add(step.limit())
	if ours, ok := ctx.Deadline(); ok && ours.Before(end) {
		end = ours
	}
	return end.Add(x.spec.Grace() + leaseMargin)
}

// limit is the step's time limit, of a composite step its members' longest; 0:
// it has none.
func (s *Step) limit() time.Duration {
	longest := time.Duration(s.Timeout)
	for i := range s.Parallel {
		longest = max(longest, s.Parallel[i].limit())
	}
	return longest
}
