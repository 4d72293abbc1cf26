package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"executor/internal/runs"
)

type runsCmd struct {
	List   listCmd   `cmd:"" help:"List runs, newest first."`
	Show   showCmd   `cmd:"" help:"Show everything that is known of a run, but its output."`
	Logs   logsCmd   `cmd:"" help:"Print the output of a run."`
	Cancel cancelCmd `cmd:"" help:"Ask for the end of a run."`
	Retry  retryCmd  `cmd:"" help:"Reopen a failed or cancelled run at its first unfinished step."`
}

// oneRun is the argument that names a run.
type oneRun struct {
	ID string `arg:"" name:"id" help:"The run's id, or the first four or more characters of it."`
}

// open finds the run.
func (o oneRun) open(ctx context.Context, a *app) (*runs.Store, *database, uuid.UUID, error) {
	store, db, err := a.client(ctx)
	if err != nil {
		return nil, nil, uuid.Nil, err
	}
	id, err := store.Resolve(ctx, o.ID)
	if err != nil {
		_ = db.close()
		return nil, nil, uuid.Nil, &usage{fmt.Errorf("%s: %w", clean(o.ID), err)}
	}
	return store, db, id, nil
}

type cancelCmd struct {
	oneRun `embed:""`
	Wait   bool `help:"Return when the run has ended."`
	JSON   bool `name:"json" help:"One JSON document."`
}

// Help is kong's.
func (cancelCmd) Help() string {
	return `A running process is stopped first, so the run ends a moment later. A run that has ended stays as it is; cancelling it is no error.`
}

// Run is kong's.
func (c *cancelCmd) Run(ctx context.Context, a *app) (err error) {
	store, db, id, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	status, err := store.Cancel(ctx, store.Pool(), id)
	if err != nil {
		return err
	}
	summary, err := store.Summary(ctx, id)
	for err == nil && c.Wait && !summary.Status.Terminal() {
		if err = pause(ctx, pollSlow); err == nil {
			summary, err = store.Summary(ctx, id)
		}
	}
	switch {
	case err != nil:
		return err
	case c.JSON:
		return a.printJSON(summary)
	case summary.Status.Terminal():
		fmt.Fprintf(a.out, "%s %s\n", id, a.status(summary.Status))
	default:
		fmt.Fprintf(a.out, "%s is %s; its end was asked for\n", id, status)
	}
	return nil
}

type retryCmd struct {
	oneRun `embed:""`
	Follow bool `help:"Print the run's progress and output until it ends, and exit as it did."`
	JSON   bool `name:"json" help:"JSON for programs: one document, or with --follow one line per event."`
}

// Help is kong's.
func (retryCmd) Help() string {
	return `Finished steps are not run again, and the retry budgets are fresh.

    executor runs retry 3f2a --follow`
}

// Run is kong's.
func (c *retryCmd) Run(ctx context.Context, a *app) (err error) {
	store, db, id, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	before, err := store.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := store.Retry(ctx, id); err != nil {
		return err
	}
	if c.Follow {
		return a.follow(ctx, store, id, c.JSON, &before)
	}
	if c.JSON {
		summary, err := store.Summary(ctx, id)
		if err != nil {
			return err
		}
		return a.printJSON(summary)
	}
	fmt.Fprintf(a.out, "%s is queued again\n", id)
	return nil
}
