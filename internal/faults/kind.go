package faults

import (
	"fmt"
	"strings"
	"time"
)

// Kind is one kind of failure. It is itself an error, so that
// errors.Is(err, faults.Sandbox) asks whether err is of that kind or of any
// kind below it. Kinds are declared in the table of this package and nowhere
// else; they are compared by identity.
type Kind struct {
	code   string
	parent *Kind
	policy *Policy // nil: the parent's
	final  bool    // a run's overrides cannot make it retryable
	doc    string
}

// Code is the stable, machine-readable name: what runs.failure_code holds.
func (k *Kind) Code() string { return k.code }

// Parent is the family the kind belongs to, or nil.
func (k *Kind) Parent() *Kind { return k.parent }

// Doc is one sentence of what the kind means.
func (k *Kind) Doc() string { return k.doc }

// Final reports that no override of a run may retry the kind.
func (k *Kind) Final() bool { return k.final }

// Inherits reports that the kind states no policy of its own.
func (k *Kind) Inherits() bool { return k.policy == nil }

// Policy is the kind's own policy or the nearest one above it.
func (k *Kind) Policy() Policy { return *k.policyOwner().policy }

// policyOwner is the kind whose policy applies. Faults that share an owner
// share one retry budget.
func (k *Kind) policyOwner() *Kind {
	for k.policy == nil {
		k = k.parent
	}
	return k
}

// Error makes a Kind usable as the target of errors.Is.
func (k *Kind) Error() string { return k.code }

// Is reports whether target is k or one of the families above it.
func (k *Kind) Is(target error) bool {
	for ; k != nil; k = k.parent {
		if target == error(k) {
			return true
		}
	}
	return false
}

// Mode says how a policy treats a fault.
type Mode string

const (
	Never     Mode = "never"     // discarded at once
	Transient Mode = "transient" // one retry per delay of the schedule
	Quota     Mode = "quota"     // one wait until the provider's window turns
)

// Policy says whether and when a fault is retried.
type Policy struct {
	Mode       Mode
	Delays     []time.Duration // of Transient, before jitter
	RetryAfter bool            // a Retry-After of the provider replaces the delay where it is longer
	FreshHost  bool            // the retry needs a host that has not seen the fault
}

// String is the policy as the documentation words it.
func (p Policy) String() string {
	if p.Mode != Transient {
		return string(p.Mode)
	}
	delays := make([]string, len(p.Delays))
	for i, d := range p.Delays {
		delays[i] = fmt.Sprintf("%d s", int(d/time.Second))
	}
	s := string(p.Mode) + " " + strings.Join(delays, ", ")
	if p.RetryAfter {
		s += ", Retry-After first"
	}
	if p.FreshHost {
		s += ", on a fresh host"
	}
	return s
}
