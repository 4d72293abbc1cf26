package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
)

// report is the verdict in the making.
type report struct {
	*world
	*evidence
	violations []violation

	ends         counts
	executorLost int
	places       int // commands that were started at least once
	bytes        int // of output
	cancelTook   []time.Duration

	kills, killsThatHit, stepsHit int
	reattached                    int
	detected, detectedLate        []time.Duration // from a kill to the judgement; late: Postgres had just come back
}

type counts struct{ succeeded, failed, cancelled int }

type violation struct{ Property, Where string }

func (r *report) violate(property, format string, args ...any) {
	r.violations = append(r.violations, violation{property, fmt.Sprintf(format, args...)})
}

// figures counts the kills that hit a running step, how soon they were
// noticed, and the processes that another claim went on with.
func (r *report) figures() {
	for _, run := range r.runs {
		for _, v := range run.events {
			if v.Kind != "running" && v.Kind != "claimed" {
				continue
			}
			r.reattached += r.livingAt(run, v.At)
		}
	}
	for _, d := range r.done {
		if d.kind != faultKill || d.skipped != "" {
			continue
		}
		r.kills++
		hit := 0
		for _, x := range r.registered {
			if x.PID != d.pid || x.StartedAt.After(d.began) {
				continue
			}
			hit += r.workedOn(x.ID, d.began)
			if x.LostAt != nil && x.LostAt.After(d.began) {
				r.noticed(d.began, *x.LostAt)
			}
		}
		r.stepsHit += hit
		r.killsThatHit += min(1, hit)
	}
}

// noticed sorts a detection by whether Postgres had been away since a lease
// before it: then everybody was given one to come back.
func (r *report) noticed(killed, lost time.Time) {
	if killed.Sub(r.pg.began) < 15*time.Second {
		r.detectedLate = append(r.detectedLate, lost.Sub(killed))
		return
	}
	for _, d := range r.done {
		if d.victim < 0 && d.over.After(killed.Add(-15*time.Second)) && d.began.Before(lost) {
			r.detectedLate = append(r.detectedLate, lost.Sub(killed))
			return
		}
	}
	r.detected = append(r.detected, lost.Sub(killed))
}

// livingAt is how many processes of a run lived at a time.
func (r *report) livingAt(run *runRow, at time.Time) int {
	n := 0
	for _, l := range run.launches {
		for _, tok := range r.reported[run.Name+"/"+l.Step+"/"+l.Member] {
			if tok.launch == launchName(&place{step: l.Step, member: l.Member}, l.N) && tok.started.Before(at) && tok.gone.After(at) {
				n++
			}
		}
	}
	return n
}

// workedOn is how many processes an executor followed at a time.
func (r *report) workedOn(executor uuid.UUID, at time.Time) int {
	n := 0
	for _, run := range r.runs {
		var owner uuid.UUID
		for _, v := range run.events {
			if v.At.After(at) {
				break
			}
			switch {
			case v.Kind == "running" || v.Kind == "claimed":
				owner = uuid.Nil
				if v.Executor != nil {
					owner = *v.Executor
				}
			case v.Kind != "cancel_requested":
				owner = uuid.Nil
			}
		}
		if owner == executor {
			n += r.livingAt(run, at)
		}
	}
	return n
}

func (r *report) print(c config) {
	if r.killsThatHit < c.floor && strings.Contains(c.faults, faultKill) {
		r.violate("enough is broken", "%d kills hit a running step, want %d", r.killsThatHit, c.floor)
	}
	if r.reattached < c.floor && strings.Contains(c.faults, faultKill) {
		r.violate("enough is broken", "%d re-attachments, want %d", r.reattached, c.floor)
	}
	byKind := map[string]int{}
	for _, d := range r.done {
		if d.skipped == "" {
			byKind[d.kind]++
		}
	}
	var faults []string
	for _, kind := range allFaults {
		if byKind[kind] > 0 {
			faults = append(faults, fmt.Sprintf("%s %d", kind, byKind[kind]))
		}
	}
	did, accepted := 0, 0
	for _, deeds := range r.office.did {
		for _, d := range deeds {
			did++
			if d.accepted {
				accepted++
			}
		}
	}
	launches := 0
	for _, run := range r.runs {
		launches += len(run.launches)
	}
	rows := [][2]string{
		{"seed", fmt.Sprint(c.seed)},
		{"things were broken for", c.duration.String()},
		{"faults", strings.Join(faults, ", ")},
		{"runs", fmt.Sprintf("%d: %d succeeded, %d failed (%d executor_lost), %d cancelled", len(r.runs), r.ends.succeeded, r.ends.failed, r.executorLost, r.ends.cancelled)},
		{"commands, launches, output", fmt.Sprintf("%d, %d, %d bytes", r.places, launches, r.bytes)},
		{"operators' deeds", fmt.Sprintf("%d, %d of them accepted", did, accepted)},
		{"kills that hit a running step", fmt.Sprintf("%d of %d; %d steps", r.killsThatHit, r.kills, r.stepsHit)},
		{"re-attachments", fmt.Sprint(r.reattached)},
		{"a kill was noticed after", spread(r.detected)},
		{"… after Postgres had been away", spread(r.detectedLate)},
		{"a cancel took", spread(r.cancelTook)},
		{"leaving on SIGTERM took", spread(r.drains)},
		{"after healing, the last run ended in", r.endedIn.Round(100 * time.Millisecond).String()},
		{"and the last host went in", r.cleanIn.Round(100 * time.Millisecond).String()},
		{"goroutines of an idle executor", fmt.Sprintf("%v before, %v after", r.idle, r.after)},
	}
	fmt.Println()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	table.Flush()
	if c.json {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"figures": rows, "violations": r.violations})
	}
	slices.SortFunc(r.violations, func(a, b violation) int { return strings.Compare(a.Property+a.Where, b.Property+b.Where) })
	property := ""
	for _, v := range r.violations {
		if v.Property != property {
			property = v.Property
			fmt.Printf("\nVIOLATED: %s\n", property)
		}
		fmt.Printf("   %s\n", v.Where)
	}
	if len(r.violations) == 0 {
		fmt.Println("PASS")
	}
}

func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
	return fmt.Sprintf("%s median, %s at most (%d)", round(all[len(all)/2]), round(all[len(all)-1]), len(all))
}

func (c *counts) add(status string) {
	switch runs.Status(status) {
	case runs.Succeeded:
		c.succeeded++
	case runs.Failed:
		c.failed++
	case runs.Cancelled:
		c.cancelled++
	}
}
