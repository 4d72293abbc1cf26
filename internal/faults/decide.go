package faults

import (
	"time"
)

const (
	quotaDefaultWait = 30 * time.Minute // when the provider does not say when its window turns
	quotaLongestWait = 6 * time.Hour    // a run is not kept waiting for longer
	quotaJitterMin   = 60 * time.Second
	quotaJitterSpan  = 60 * time.Second
)

// Overrides are a run's own wishes about retries. Names are codes or families.
// Exclude wins over Include.
type Overrides struct {
	Include []string        // retried even where the policy is never
	Exclude []string        // never retried
	Delays  []time.Duration // replaces the schedule of every transient fault
}

// Decision is what becomes of a fault.
type Decision struct {
	Retry     bool
	Delay     time.Duration
	FreshHost bool
	Reason    string // for people: why it is not retried, or which retry this is
}

// Decide is the whole retry policy: a pure function of the fault, the kinds of
// the step's earlier failed attempts (since the run was last reopened), the
// run's overrides and the time. jitter is a number in [0,1).
func Decide(f *Fault, earlier []*Kind, o Overrides, now time.Time, jitter float64) Decision {
	included := matches(f.Kind, o.Include) && !f.Kind.final
	if matches(f.Kind, o.Exclude) {
		return discard("the run excludes it from retries")
	}
	policy, shared := f.Kind.Policy(), sameOwner(f.Kind)
	if f.Permanent {
		policy = Policy{Mode: Never}
	}
	if policy.Mode == Never {
		if !included {
			return discard("it is never retried")
		}
		policy = Policy{Mode: Transient, Delays: Sandbox.policy.Delays}
		shared = func(k *Kind) bool { return k == f.Kind }
	}
	if policy.Mode == Quota {
		return decideQuota(f, count(earlier, func(k *Kind) bool { return k.Policy().Mode == Quota }), now, jitter)
	}
	if len(o.Delays) > 0 {
		policy.Delays = o.Delays
		shared = func(k *Kind) bool { return true }
	}
	used := count(earlier, shared)
	if used >= len(policy.Delays) {
		return discard("its retries are used up")
	}
	delay := time.Duration(float64(policy.Delays[used]) * (0.9 + 0.2*jitter))
	if policy.RetryAfter {
		if f.RetryAfter > quotaLongestWait {
			return discard("the provider asks for a longer wait than a run may take")
		}
		delay = max(delay, f.RetryAfter)
	}
	return Decision{Retry: true, Delay: delay, FreshHost: policy.FreshHost, Reason: "retried on its schedule"}
}

func decideQuota(f *Fault, waited int, now time.Time, jitter float64) Decision {
	if waited > 0 {
		return discard("it was waited for once already")
	}
	wait := quotaDefaultWait
	switch {
	case !f.ResetAt.IsZero():
		wait = max(0, f.ResetAt.Sub(now))
	case f.RetryAfter > 0:
		wait = f.RetryAfter
	}
	if wait > quotaLongestWait {
		return discard("the window turns later than a run may wait")
	}
	wait += quotaJitterMin + time.Duration(jitter*float64(quotaJitterSpan))
	return Decision{Retry: true, Delay: wait, Reason: "retried when the window turns"}
}

func discard(reason string) Decision { return Decision{Reason: reason} }

func sameOwner(kind *Kind) func(*Kind) bool {
	owner := kind.policyOwner()
	return func(k *Kind) bool { return k.policyOwner() == owner }
}

func matches(kind *Kind, names []string) bool {
	for _, name := range names {
		if named, ok := byCode[name]; ok && kind.Is(named) {
			return true
		}
	}
	return false
}

func count(kinds []*Kind, match func(*Kind) bool) int {
	n := 0
	for _, k := range kinds {
		if match(k) {
			n++
		}
	}
	return n
}
