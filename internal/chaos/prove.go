package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
)

// crashBudget is how many crashes in a row a run survives.
const crashBudget = 3

// prove compares the evidence with what must be true.
func (w *world) prove(e *evidence) *report {
	r := &report{world: w, evidence: e}
	for _, f := range w.failed {
		r.violate("the machinery", "%s", f)
	}
	for _, t := range w.office.lost {
		r.violate("every run is enqueued", "%s", t)
	}
	byName := map[string]*task{}
	for _, t := range w.tasks {
		byName[t.name] = t
	}
	if n := len(w.tasks) - len(w.office.lost); len(e.runs) != n {
		r.violate("a key is one run", "%d runs of %d tasks", len(e.runs), n)
	}
	for _, run := range e.runs {
		t := byName[run.Name]
		if t == nil {
			r.violate("every run was asked for", "%s", run.ID)
			continue
		}
		r.ending(t, run)
		r.history(run)
		r.steps(t, run)
		r.launches(t, run)
	}
	r.leftovers()
	r.figures()
	return r
}

// ending: the run has ended, as was known beforehand or as an operator wished,
// and its job says the same.
func (r *report) ending(t *task, run *runRow) {
	name := describe(run)
	want := map[string]string{"succeeded": "completed", "failed": "discarded", "cancelled": "cancelled"}
	if job, terminal := want[run.Status]; !terminal {
		r.violate("every run ends", "%s", name)
		return
	} else if run.JobState != job {
		r.violate("job states match run states", "%s: its job is %s", name, run.JobState)
	}
	if run.Status == "failed" && (run.Code == "" || run.Message == "") {
		r.violate("no failure without a code", "%s", name)
	}
	r.ends.add(run.Status)
	cancels := slices.DeleteFunc(slices.Clone(r.office.did[t.name]), func(d didDeed) bool { return d.what != "cancel" })
	switch {
	case run.Status == "cancelled":
		r.cancelled(run, cancels)
	case run.Status == "failed" && run.Code == "executor_lost":
		r.executorLost++
		if crashes := r.crashes(run); crashes <= crashBudget {
			r.violate("executor_lost only past the crash budget", "%s: %d crashes", name, crashes)
		}
	case run.Status != string(t.outcome) || run.Code != t.code:
		r.violate("every run ends as is known beforehand", "%s: want %s %s; it says %q", name, t.outcome, t.code, run.Message)
	}
	r.promptness(run, cancels)
}

func describe(run *runRow) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", run.Name, run.ID, run.Status, run.Code))
}

// crashes counts the executors that were judged dead while they owned the run,
// since its last step ended.
func (r *report) crashes(run *runRow) (n int) {
	lost := map[uuid.UUID]time.Time{}
	for _, x := range r.registered {
		if x.LostAt != nil {
			lost[x.ID] = *x.LostAt
		}
	}
	var progress time.Time
	for _, s := range run.steps {
		if s.Status == "succeeded" && s.FinishedAt.After(progress) {
			progress = *s.FinishedAt
		}
	}
	var owner *uuid.UUID
	for _, v := range run.events {
		if v.Kind == "cancel_requested" {
			continue
		}
		if owner != nil {
			if at, dead := lost[*owner]; dead && at.After(progress) && !at.After(v.At) {
				n++
			}
		}
		owner = nil
		if v.Kind == "running" || v.Kind == "claimed" {
			owner = v.Executor
		}
	}
	return n
}

// cancelled: somebody asked for it, and not only before the run was reopened.
func (r *report) cancelled(run *runRow, cancels []didDeed) {
	if len(cancels) == 0 {
		r.violate("only who is cancelled is cancelled", "%s", describe(run))
		return
	}
	reopened := lastEvent(run, "queued")
	last := cancels[len(cancels)-1].at.Add((deedTries + 5) * time.Second)
	if run.Round > 1 && reopened.After(last) {
		r.violate("a cancel ends with the reopening", "%s", describe(run))
	}
}

func lastEvent(run *runRow, kind string) (at time.Time) {
	for _, v := range run.events {
		if v.Kind == kind {
			at = v.At
		}
	}
	return at
}

// promptness: after an accepted cancel nothing new is begun.
func (r *report) promptness(run *runRow, cancels []didDeed) {
	for _, c := range cancels {
		if !c.accepted {
			continue
		}
		for _, v := range run.events {
			if v.At.After(c.at) && v.Kind == "queued" {
				break
			}
			if v.At.After(c.at) && runs.Status(v.Kind).Terminal() {
				r.cancelTook = append(r.cancelTook, v.At.Sub(c.at))
				break
			}
		}
		reopened := time.Now()
		for _, v := range run.events {
			if v.Kind == "queued" && v.At.After(c.at) {
				reopened = v.At
				break
			}
		}
		for _, a := range run.attempts {
			if a.StartedAt.After(c.at.Add(10*time.Second)) && a.StartedAt.Before(reopened) {
				r.violate("nothing is begun after a cancel", "%s: cancelled at %s via %s, attempt %d of %s/%s began %s later",
					describe(run), c.at.Format(time.TimeOnly), c.via, a.N, a.Step, a.Member, a.StartedAt.Sub(c.at).Round(time.Millisecond))
			}
		}
	}
}

// history: every move of the run is a legal one.
func (r *report) history(run *runRow) {
	var status runs.Status
	for _, v := range run.events {
		to := runs.Status(v.Kind)
		if !slices.Contains(runs.Statuses, to) {
			continue
		}
		if status != "" && !runs.Legal(status, to) {
			r.violate("every move is legal", "%s: %s to %s", describe(run), status, to)
		}
		status = to
	}
	if string(status) != run.Status {
		r.violate("the events tell the status", "%s: %s", describe(run), status)
	}
}

// leftovers: nothing is left at the provider, in the ledger or on the machine.
func (r *report) leftovers() {
	for _, h := range r.hosts {
		if h.State != "released" {
			r.violate("every host is released", "%s is %s (run %s)", h.Key, h.State, h.Run)
		}
	}
	for _, dir := range r.dirs {
		r.violate("no host is left at the provider", "%s", dir)
	}
	for pid, command := range r.processes {
		r.violate("no process is left", "%d: %s", pid, command)
	}
	for i, n := range r.after {
		if n < 0 || n > slices.Max(r.idle)+goroutineSlack {
			r.violate("no goroutine is left", "executor %d has %d when all is over; when nothing had run it was %d", i, n, r.idle[i])
		}
	}
	for _, place := range r.overlap {
		r.violate("never two processes of a step at a time", "%s", place)
	}
	for _, id := range r.strayJobs {
		r.violate("every job is a run's", "job %d", id)
	}
	for _, line := range r.logs {
		r.violate("no bug in the logs", "%s", line)
	}
	for _, e := range r.executors {
		for _, p := range e.lives {
			if lived := p.ended.Sub(p.started); !p.expected && !p.ended.IsZero() {
				r.violate("an executor does not end by itself", "executor %d, pid %d, after %s: %s", e.index, p.pid, lived.Round(100*time.Millisecond), p.cmd.ProcessState)
			}
		}
	}
}
