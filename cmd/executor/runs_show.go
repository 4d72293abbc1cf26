package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"executor/internal/runs"
)

type showCmd struct {
	oneRun     `embed:""`
	ExitStatus bool `help:"Exit as the run ended, or with 5 when it has not."`
	JSON       bool `name:"json" help:"One JSON document."`
}

// Help is kong's.
func (showCmd) Help() string {
	return `Examples:

    executor runs show 3f2a
    executor runs show 3f2a --json | jq .steps[].result

` + exitHelp
}

// Run is kong's.
func (c *showCmd) Run(ctx context.Context, a *app) (err error) {
	store, db, id, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	d, err := store.Get(ctx, id)
	if err != nil {
		return err
	}
	if c.JSON {
		err = a.printJSON(d)
	} else {
		a.show(d)
	}
	if err == nil && c.ExitStatus {
		return endOf(d.Status)
	}
	return err
}

// show prints a run for people.
func (a *app) show(d runs.Detail) {
	now := time.Now()
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.out, "%s %s\n", a.p.dim(fmt.Sprintf("%-9s", name)), value)
		}
	}
	fact("run", a.p.bold(d.ID.String()))
	fact("name", oneLine(d.Name))
	fact("status", a.status(d.Status)+pending(d.Summary, now))
	if d.Status == runs.Failed {
		fact("code", a.p.red(d.FailureCode))
		fact("step", oneLine(d.FailedStep))
		fact("message", clean(d.FailureMessage))
	}
	fact("created", stamp(&d.CreatedAt))
	fact("started", stamp(d.StartedAt))
	fact("finished", stamp(d.FinishedAt))
	fact("took", took(d.Summary, now))
	fact("job", fmt.Sprint(d.JobID))
	if d.Crashes > 0 {
		fact("crashes", a.p.yellow(fmt.Sprintf("%d executors died under it", d.Crashes)))
	}
	if len(d.Steps) > 0 {
		fmt.Fprintln(a.out)
		a.showSteps(d, now)
	}
	for _, h := range d.Hosts {
		if h.State != "released" {
			fmt.Fprintf(a.out, "\nhost %s of %s: %s\n", oneLine(h.Key), oneLine(h.Provider), h.State)
		}
	}
}

func pending(r runs.Summary, now time.Time) string {
	if text := why(r, now); text != "" && r.Status != runs.Failed {
		return ", " + text
	}
	return ""
}

// showSteps prints a line for each attempt, and what its fault was caused by.
func (a *app) showSteps(d runs.Detail, now time.Time) {
	t := table{header: []string{"STEP", "TRY", "OUTCOME", "TOOK", "EXIT", "WHY"}}
	for _, s := range d.Steps {
		if len(s.Attempts) == 0 {
			t.add(plain(s.Name), plain("-"), cell{string(s.Status), a.statusColour(s.Status)}, plain("-"), plain("-"), plain(""))
		}
		for _, at := range s.Attempts {
			t.add(plain(placeName(s.Name, at.Member)), plain(fmt.Sprint(at.N)), a.outcome(at), plain(span(endOr(at.EndedAt, now).Sub(at.StartedAt))),
				plain(exitText(at)), plain(causeText(at, now)))
		}
	}
	t.print(a.out, a.p)
	for _, s := range d.Steps {
		if s.Result != nil {
			fmt.Fprintf(a.out, "\n%s %s\n", a.p.dim("result of "+s.Name+":"), shorten(clean(string(s.Result)), 2000))
		}
	}
}

func (a *app) outcome(at runs.AttemptDetail) cell {
	switch at.Outcome {
	case "":
		return cell{"running", a.p.cyan}
	case "succeeded":
		return cell{at.Outcome, a.p.green}
	case "failed":
		return cell{at.Outcome, a.p.red}
	}
	return cell{at.Outcome, a.p.yellow}
}

func placeName(step, member string) string {
	if member == "" {
		return step
	}
	return step + "/" + member
}

func exitText(at runs.AttemptDetail) string {
	switch {
	case at.ExitSignal != "":
		return at.ExitSignal
	case at.ExitCode != nil:
		return fmt.Sprint(*at.ExitCode)
	}
	return "-"
}

func causeText(at runs.AttemptDetail, now time.Time) string {
	if at.FailureCode == "" {
		return ""
	}
	text := at.FailureCode
	if len(at.Causes) > 0 {
		text = oneLine(at.Causes[0].Message)
		if !strings.HasPrefix(text, at.FailureCode) {
			text = at.FailureCode + ": " + text
		}
	}
	if at.RetryAt != nil {
		text += ", tried again at " + at.RetryAt.Local().Format(time.TimeOnly)
	}
	return text
}

func endOr(t *time.Time, now time.Time) time.Time {
	if t == nil {
		return now
	}
	return *t
}

func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
