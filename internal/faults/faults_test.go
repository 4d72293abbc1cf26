package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"executor/internal/faults"
)

func TestAKindIsItsFamily(t *testing.T) {
	for _, k := range faults.Kinds() {
		fault := error(faults.New(k, "op", io.EOF))
		wrapped := fmt.Errorf("higher up: %w", fault)
		for _, other := range faults.Kinds() {
			want := other == k || other == k.Parent()
			if got := errors.Is(wrapped, other); got != want {
				t.Errorf("errors.Is(%s, %s) = %v", k.Code(), other.Code(), got)
			}
		}
		if !errors.Is(wrapped, io.EOF) {
			t.Errorf("%s lost its cause", k.Code())
		}
		if got := faults.Of(wrapped).Kind; got != k {
			t.Errorf("Of(%s) = %s", k.Code(), got.Code())
		}
	}
}

func TestTheTableIsWhole(t *testing.T) {
	for _, k := range faults.Kinds() {
		if k.Code() == "" || k.Doc() == "" {
			t.Errorf("%q lacks a code or a sentence", k.Code())
		}
		if k.Parent() == nil && k.Inherits() {
			t.Errorf("%s has no policy and nobody to inherit one from", k.Code())
		}
		if found, ok := faults.ByCode(k.Code()); !ok || found != k {
			t.Errorf("ByCode(%q) = %v", k.Code(), found)
		}
		if p := k.Policy(); p.Mode == faults.Transient && len(p.Delays) == 0 {
			t.Errorf("%s is transient without a delay", k.Code())
		}
	}
}

func TestPoliciesAsDocumented(t *testing.T) {
	want := map[string]string{
		"sandbox": "transient 60 s, 300 s", "sandbox_provisioning": "transient 60 s, 300 s",
		"sandbox_throttled": "transient 60 s, 300 s, Retry-After first", "sandbox_capacity": "transient 60 s, 300 s, 900 s",
		"sandbox_disk_full": "transient 60 s, on a fresh host", "sandbox_denied": "never", "overloaded": "transient 300 s, 900 s",
		"first_byte": "transient 0 s, 0 s", "rate_limited": "quota", "auth": "never", "timeout": "never", "internal": "never",
	}
	for code, policy := range want {
		k, ok := faults.ByCode(code)
		if !ok {
			t.Errorf("no kind %s", code)
			continue
		}
		if got := k.Policy().String(); got != policy {
			t.Errorf("%s: got %q, want %q", code, got, policy)
		}
	}
}

// Every kind, at every number of earlier attempts, with every override.
func TestEveryDecision(t *testing.T) {
	now := time.Date(2026, 3, 8, 2, 30, 0, 0, time.UTC)
	for _, k := range faults.Kinds() {
		policy := k.Policy()
		include := faults.Overrides{Include: []string{k.Code()}}
		exclude := faults.Overrides{Include: []string{k.Code()}, Exclude: []string{k.Code()}}
		delays := faults.Overrides{Delays: []time.Duration{time.Second}}
		for earlier := range 6 {
			past := make([]*faults.Kind, earlier)
			for i := range past {
				past[i] = k
			}
			decide := func(o faults.Overrides) faults.Decision {
				return faults.Decide(faults.New(k, "op", io.EOF), past, o, now, 0.5)
			}
			name := fmt.Sprintf("%s after %d", k.Code(), earlier)

			d := decide(faults.Overrides{})
			switch policy.Mode {
			case faults.Never:
				if d.Retry {
					t.Errorf("%s: retried", name)
				}
				if got := decide(include); got.Retry != (!k.Final() && earlier < 2) {
					t.Errorf("%s included: %+v", name, got)
				}
			case faults.Transient:
				if want := earlier < len(policy.Delays); d.Retry != want || want && d.Delay != policy.Delays[earlier] {
					t.Errorf("%s: %+v", name, d)
				}
				if got := decide(delays); got.Retry != (earlier < 1) || got.Retry && got.Delay != time.Second {
					t.Errorf("%s with delays: %+v", name, got)
				}
			case faults.Quota:
				if want := earlier == 0; d.Retry != want || want && d.Delay != 30*time.Minute+90*time.Second {
					t.Errorf("%s: %+v", name, d)
				}
			}
			if got := decide(exclude); got.Retry {
				t.Errorf("%s excluded: %+v", name, got)
			}
			if d.FreshHost != (d.Retry && policy.FreshHost) {
				t.Errorf("%s: fresh host %v", name, d.FreshHost)
			}
			if d.Reason == "" {
				t.Errorf("%s: no reason", name)
			}
		}
	}
}

func TestDecisionsOnEvidence(t *testing.T) {
	now := time.Date(2026, 11, 1, 1, 30, 0, 0, time.UTC)
	fault := func(k *faults.Kind, set func(*faults.Fault)) *faults.Fault {
		return faults.New(k, "", io.EOF).With(set)
	}
	for _, c := range []struct {
		name    string
		fault   *faults.Fault
		earlier []*faults.Kind
		over    faults.Overrides
		jitter  float64
		want    time.Duration // -1: discarded
	}{
		{"jitter down", fault(faults.Sandbox, func(*faults.Fault) {}), nil, faults.Overrides{}, 0, 54 * time.Second},
		{"jitter up", fault(faults.Sandbox, func(*faults.Fault) {}), nil, faults.Overrides{}, 0.999999999, 66 * time.Second},
		{"throttled, longer Retry-After", fault(faults.SandboxThrottled, func(f *faults.Fault) { f.RetryAfter = 2 * time.Minute }), nil, faults.Overrides{}, 0.5, 2 * time.Minute},
		{"throttled, shorter Retry-After", fault(faults.SandboxThrottled, func(f *faults.Fault) { f.RetryAfter = 7 * time.Second }), nil, faults.Overrides{}, 0.5, time.Minute},
		{"throttled for ten hours", fault(faults.SandboxThrottled, func(f *faults.Fault) { f.RetryAfter = 10 * time.Hour }), nil, faults.Overrides{}, 0.5, -1},
		{"quota with a reset", fault(faults.UsageLimit, func(f *faults.Fault) { f.ResetAt = now.Add(2 * time.Hour) }), nil, faults.Overrides{}, 0, 2*time.Hour + time.Minute},
		{"quota with a reset in the past", fault(faults.UsageLimit, func(f *faults.Fault) { f.ResetAt = now.Add(-time.Hour) }), nil, faults.Overrides{}, 0, time.Minute},
		{"quota with Retry-After", fault(faults.RateLimited, func(f *faults.Fault) { f.RetryAfter = time.Minute }), nil, faults.Overrides{}, 0, 2 * time.Minute},
		{"quota that turns tomorrow", fault(faults.RateLimited, func(f *faults.Fault) { f.ResetAt = now.Add(7 * time.Hour) }), nil, faults.Overrides{}, 0, -1},
		{"the other quota was waited for", fault(faults.RateLimited, func(*faults.Fault) {}), []*faults.Kind{faults.UsageLimit}, faults.Overrides{}, 0, -1},
		{"siblings share a budget", fault(faults.SandboxLost, func(*faults.Fault) {}), []*faults.Kind{faults.SandboxProvisioning, faults.SandboxNotFound}, faults.Overrides{}, 0.5, -1},
		{"own schedule, own budget", fault(faults.SandboxCapacity, func(*faults.Fault) {}), []*faults.Kind{faults.SandboxProvisioning, faults.SandboxNotFound}, faults.Overrides{}, 0.5, time.Minute},
		{"permanent", fault(faults.SandboxImage, func(f *faults.Fault) { f.Permanent = true }), nil, faults.Overrides{}, 0.5, -1},
		{"family included", fault(faults.SandboxDenied, func(*faults.Fault) {}), nil, faults.Overrides{Include: []string{"sandbox"}}, 0.5, time.Minute},
		{"family excluded", fault(faults.SandboxLost, func(*faults.Fault) {}), nil, faults.Overrides{Exclude: []string{"sandbox"}}, 0.5, -1},
		{"exclude wins", fault(faults.SandboxLost, func(*faults.Fault) {}), nil, faults.Overrides{Include: []string{"sandbox_lost"}, Exclude: []string{"sandbox"}}, 0.5, -1},
		{"included with delays", fault(faults.CommandFailed, func(*faults.Fault) {}), []*faults.Kind{faults.CommandFailed}, faults.Overrides{Include: []string{"command_failed"}, Delays: []time.Duration{1, 2 * time.Second}}, 0.5, 2 * time.Second},
	} {
		d := faults.Decide(c.fault, c.earlier, c.over, now, c.jitter)
		got := d.Delay
		if !d.Retry {
			got = -1
		}
		if diff := (got - c.want).Abs(); diff > time.Millisecond {
			t.Errorf("%s: got %v, want %v (%s)", c.name, got, c.want, d.Reason)
		}
	}
}

func TestUnclassifiedIsInternal(t *testing.T) {
	if faults.Of(nil) != nil {
		t.Error("nil became a fault")
	}
	for _, err := range []error{io.EOF, context.Canceled, errors.New("")} {
		if got := faults.Of(err); got.Kind != faults.Internal || !errors.Is(got, err) {
			t.Errorf("Of(%v) = %v", err, got)
		}
		if faults.Classified(err) {
			t.Errorf("%v is said to be classified", err)
		}
	}
}

func TestChainIsData(t *testing.T) {
	err := fmt.Errorf("step: %w", faults.New(faults.SandboxProvisioning, "create host", faults.New(faults.SandboxUnavailable, "", errors.Join(io.EOF, io.ErrNoProgress))))
	want := []faults.Link{
		{Message: err.Error()},
		{Code: "sandbox_provisioning", Message: "sandbox_provisioning: create host: sandbox_unavailable: EOF\nmultiple Read calls return no data or error"},
		{Code: "sandbox_unavailable", Message: "sandbox_unavailable: EOF\nmultiple Read calls return no data or error"},
		{Message: "EOF\nmultiple Read calls return no data or error"},
		{Message: "EOF"},
		{Message: "multiple Read calls return no data or error"},
	}
	if diff := cmp.Diff(want, faults.Chain(err)); diff != "" {
		t.Error(diff)
	}
}
