package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"executor/internal/faults"
	"executor/internal/runs"
)

type listCmd struct {
	Status string `enum:",queued,running,backing_off,succeeded,failed,cancelled" default:"" placeholder:"STATUS" help:"Only runs in this status: queued, running, backing_off, succeeded, failed or cancelled."`
	Code   string `placeholder:"CODE" help:"Only runs that failed with this code; see \"executor codes\"."`
	Limit  int    `default:"20" help:"At most so many (${default})."`
	JSON   bool   `name:"json" help:"One JSON document."`
}

// Help is kong's.
func (listCmd) Help() string {
	return `Examples:

    executor runs list --status failed
    executor runs list --code sandbox_provisioning --limit 100 --json`
}

// Run is kong's.
func (c *listCmd) Run(ctx context.Context, a *app) (err error) {
	if _, known := faults.ByCode(c.Code); c.Code != "" && !known {
		return usagef("--code: expected one of those that \"executor codes\" lists, got %q", c.Code)
	}
	if c.Limit < 1 || c.Limit > 10_000 {
		return usagef("--limit: expected 1 to 10000, got %d", c.Limit)
	}
	store, db, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	list, err := store.List(ctx, runs.Filter{Status: runs.Status(c.Status), FailureCode: c.Code, Limit: c.Limit})
	if err != nil {
		return err
	}
	if c.JSON {
		if list == nil {
			list = []runs.Summary{}
		}
		return a.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.err, "no runs")
		return nil
	}
	now := time.Now()
	t := table{header: []string{"ID", "STATUS", "TRIES", "CREATED", "TOOK", "NAME", "WHY"}}
	for _, r := range list {
		t.add(plain(r.ID.String()[:8]), cell{string(r.Status), a.statusColour(r.Status)}, plain(strconv.Itoa(r.Attempts)),
			plain(ago(now, r.CreatedAt)), plain(took(r, now)), plain(orDash(shorten(oneLine(r.Name), 32))), plain(why(r, now)))
	}
	t.print(a.out, a.p)
	return nil
}

// why is what a reader of the list asks next.
func why(r runs.Summary, now time.Time) string {
	switch {
	case r.Status == runs.Failed && r.FailedStep != "":
		return r.FailureCode + " in " + oneLine(r.FailedStep)
	case r.Status == runs.Failed:
		return r.FailureCode
	case r.Status == runs.BackingOff && r.RetryAt != nil:
		return "goes on in " + span(r.RetryAt.Sub(now))
	case !r.Status.Terminal() && r.CancelRequestedAt != nil:
		return "being cancelled"
	}
	return ""
}

// took is how long the run has been under way, waits included.
func took(r runs.Summary, now time.Time) string {
	if r.StartedAt == nil {
		return "-"
	}
	end := now
	if r.FinishedAt != nil {
		end = *r.FinishedAt
	}
	return span(end.Sub(*r.StartedAt))
}

func ago(now, t time.Time) string { return span(now.Sub(t)) + " ago" }

// span is a duration for people: three digits are enough.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// statusColour is how a status is painted.
func (a *app) statusColour(s runs.Status) func(string) string {
	switch s {
	case runs.Succeeded:
		return a.p.green
	case runs.Failed:
		return a.p.red
	case runs.BackingOff, runs.Cancelled:
		return a.p.yellow
	case runs.Running:
		return a.p.cyan
	}
	return nil
}

func (a *app) status(s runs.Status) string {
	return paint(cell{"", a.statusColour(s)}, string(s))
}
