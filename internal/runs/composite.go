package runs

import (
	"context"
	"errors"
	"sync"
	"time"

	"executor/internal/faults"
)

// composite runs the members of a step at the same time, each to its own end:
// one that fails does not stop the others, for what they finish need not be
// done again. The step fails with the first failed member, in their order.
func (x *execution) composite(ctx context.Context, i int, step Step) error {
	if x.spec.Kept() {
		// All members share the kept host: it is made ready for all of them.
		p := place{step: step.Name, position: i}
		if _, err := x.ready(ctx, p, step); err != nil {
			return x.judge(ctx, &StepError{Err: err, place: p, Earlier: x.claim.history.earlier(p.step, "", x.claim.Round)})
		}
	}
	errs := make([]error, len(step.Parallel))
	var members sync.WaitGroup
	for j, member := range step.Parallel {
		p := place{step: step.Name, position: i, member: member.Name}
		if last, ok := x.claim.history.lastAttempt(p.step, p.member); ok && last.succeeded {
			continue
		}
		members.Go(func() { errs[j] = x.memberSafely(ctx, p, member) })
	}
	members.Wait()

	// Of several failures the first that is final decides: a run that cannot
	// succeed does not wait for a quota.
	var first *StepError
	for _, err := range errs {
		var failed *StepError
		if err != nil && !errors.As(err, &failed) {
			return err // the claim is over, or a bug: that goes before a member's fault
		}
		if first == nil || failed != nil && failed.final && !first.final {
			first = failed
		}
	}
	if first != nil {
		return first
	}
	return x.Store.stepSucceeded(ctx, x.claim, step.Name)
}

// memberSafely keeps a panic in one member from taking the executor down.
func (x *execution) memberSafely(ctx context.Context, p place, step Step) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &StepError{Err: PanicFault(v), place: p}
		}
	}()
	return x.member(ctx, p, step)
}

// member tries one command until it succeeds or its retries are used up. It
// waits in process, because the other members are still running, unless the
// wait is the run's.
func (x *execution) member(ctx context.Context, p place, step Step) error {
	own := *x // the history of this member grows here; the others' does not concern it
	claim := *x.claim
	own.claim = &claim
	for {
		if err := own.waitForRetry(ctx, p); err != nil {
			return own.ended(ctx, p, step)
		}
		failed := own.undecided(p)
		if failed == nil || own.runWaits(failed.Fault().Kind) {
			err := own.try(ctx, p, step)
			if !errors.As(err, &failed) {
				return err
			}
		}
		d := faults.Decide(failed.Fault(), failed.Earlier, x.spec.Overrides(), x.Now(), x.Jitter())
		failed.final = !d.Retry
		var retryAt time.Time
		if d.Retry && !own.runWaits(failed.Fault().Kind) {
			retryAt = x.Now().Add(d.Delay)
		}
		if err := x.Store.attemptFailed(ctx, &claim, failed, retryAt); err != nil {
			return err
		}
		failed.recorded = true
		if !x.spec.Kept() {
			x.releaseHostOf(ctx, &claim, x.hostKey(p))
		}
		if retryAt.IsZero() {
			return failed
		}
		x.log.Warn().Str("step", p.step).Str("member", p.member).Int("attempt", failed.attempt).
			Str("failure_code", failed.Fault().Kind.Code()).Dur("delay", d.Delay).Err(failed.Err).Msg("trying again")
		history, err := x.Store.loadHistory(context.WithoutCancel(ctx), claim.RunID)
		if err != nil {
			return err
		}
		own.claim.history = history
	}
}

// runWaits reports whether it is the run, not the member, that waits after such
// a fault: for a quota's window, or for another host to keep in the place of one
// that is gone, or full, under all members.
func (x *execution) runWaits(kind *faults.Kind) bool {
	policy := kind.Policy()
	return policy.Mode == faults.Quota || x.spec.Kept() && (policy.FreshHost || errors.Is(kind, faults.SandboxNotFound))
}

// waitForRetry sleeps until the time that the last failed attempt, perhaps of
// an earlier claim, set for the next, unless the run has waited.
func (x *execution) waitForRetry(ctx context.Context, p place) error {
	last, ok := x.claim.history.lastAttempt(p.step, p.member)
	if !ok || last.retryAt == nil || last.open || last.round != x.claim.Round {
		return nil
	}
	if kind, ok := faults.ByCode(last.code); ok && x.runWaits(kind) {
		return nil
	}
	timer := time.NewTimer(last.retryAt.Sub(x.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
