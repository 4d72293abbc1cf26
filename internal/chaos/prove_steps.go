package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// steps: what is finished was finished once, and never begun again.
func (r *report) steps(t *task, run *runRow) {
	succeeded := map[string]int{}
	for _, a := range run.attempts {
		where := a.Step + "/" + a.Member
		p := t.place(a.Step, a.Member)
		switch {
		case p == nil:
			r.violate("only what was asked for is run", "%s: %s", describe(run), where)
		case succeeded[where] > 0:
			r.violate("no finished step is run twice", "%s: attempt %d of %s", describe(run), a.N, where)
		case a.Outcome == "succeeded":
			succeeded[where]++
		case a.Outcome == "failed" && a.Code != t.code && !(p.flaky && a.Code == "command_failed"):
			r.violate("no attempt fails unforeseen", "%s: attempt %d of %s: %s %s", describe(run), a.N, where, a.Code, a.Causes)
		case a.Outcome == "":
			r.violate("an ended run has no open attempt", "%s: attempt %d of %s", describe(run), a.N, where)
		}
	}
	for _, s := range run.steps {
		if s.Status == "running" {
			r.violate("an ended run has no open step", "%s: %s", describe(run), s.Name)
		}
		if p := t.place(s.Name, ""); p != nil && s.Status == "succeeded" {
			var result struct{ Place string }
			if err := json.Unmarshal(s.Result, &result); err != nil || result.Place != p.id() {
				r.violate("the result of a step is its last line", "%s: %s has %s", describe(run), s.Name, s.Result)
			}
		}
	}
	if run.Status != "succeeded" {
		return
	}
	for _, p := range t.places {
		if where := p.step + "/" + p.member; succeeded[where] != 1 {
			r.violate("a run succeeds when all its steps have", "%s: %s", describe(run), where)
		}
	}
}

func (t *task) place(step, member string) *place {
	for _, p := range t.places {
		if p.step == step && p.member == member {
			return p
		}
	}
	return nil
}

// launches: each is one process; the next follows the end of the one before
// it; and what it printed is stored whole.
func (r *report) launches(t *task, run *runRow) {
	for _, p := range t.places {
		var launches []launchRow
		attempts := 0
		for _, l := range run.launches {
			if l.Step == p.step && l.Member == p.member {
				launches = append(launches, l)
			}
		}
		for _, a := range run.attempts {
			if a.Step == p.step && a.Member == p.member {
				attempts++
			}
		}
		if len(launches) > attempts {
			r.violate("a launch has an attempt", "%s: %s has %d launches, %d attempts", describe(run), p.id(), len(launches), attempts)
		}
		if most := run.Round + p.extraLaunches(); len(launches) > most {
			r.violate("no step is begun again without a reason", "%s: %s has %d launches in %d rounds", describe(run), p.id(), len(launches), run.Round)
		}
		tokens := map[string]int{}
		for _, tok := range r.reported[p.id()] {
			tokens[tok.launch]++
		}
		r.places += min(1, len(launches))
		for i, l := range launches {
			if i > 0 && (launches[i-1].EndedAt == nil || launches[i-1].EndedAt.After(l.RecordedAt)) {
				r.violate("a launch waits for the end of the one before it", "%s: %s", describe(run), launchName(p, l.N))
			}
			if l.EndedAt == nil {
				r.violate("every launch was seen to end", "%s: %s", describe(run), launchName(p, l.N))
			}
			began := tokens[launchName(p, l.N)]
			delete(tokens, launchName(p, l.N))
			if began > 1 || began == 0 && l.Exit != nil {
				r.violate("a launch is one process", "%s: %s began %d times", describe(run), launchName(p, l.N), began)
			}
			r.output(run, p, l)
		}
		for name, n := range tokens {
			r.violate("a launch is recorded before it is made", "%s: %s began %d times without a row", describe(run), name, n)
		}
	}
}

// extraLaunches is how often a place is tried again in one round.
func (p *place) extraLaunches() int {
	if p.flaky {
		return 1
	}
	return 0
}

func launchName(p *place, n int) string {
	if p.member == "" {
		return fmt.Sprintf("%s+%d", p.step, n)
	}
	return fmt.Sprintf("%s+%s+%d", p.step, p.member, n)
}

// output: of a process that ended by itself everything, of one that was
// stopped what it had printed until then; in order, no byte twice or missing.
func (r *report) output(run *runRow, p *place, l launchRow) {
	for _, s := range run.streams {
		if s.Step != p.step || s.Member != p.member || s.Launch != l.N {
			continue
		}
		where := fmt.Sprintf("%s: %s of %s", describe(run), s.Stream, launchName(p, l.N))
		if !s.Whole {
			r.violate("no byte twice or missing", "%s: its chunks do not fit together", where)
			continue
		}
		want := p.stdout()
		if s.Stream == "stderr" {
			want = p.stderr()
		}
		r.bytes += len(s.Data)
		switch {
		case l.Exit != nil && !p.endless && string(s.Data) != want:
			r.violate("every log is complete", "%s: %d bytes of %d, equal up to %d", where, len(s.Data), len(want), common(s.Data, want))
		case !strings.HasPrefix(want, string(s.Data)):
			r.violate("every log is in order", "%s: unlike what was printed from byte %d on: %.100q", where, common(s.Data, want), bytes.TrimPrefix(s.Data, []byte(want[:common(s.Data, want)])))
		}
	}
}

func common(a []byte, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
