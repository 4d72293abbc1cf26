package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

type logsCmd struct {
	oneRun `embed:""`
	Follow bool   `help:"Go on until the run ends, and exit as it did."`
	Step   string `placeholder:"NAME" help:"Only this step, or STEP/COMMAND of a parallel one."`
	Stream string `enum:",stdout,stderr" default:"" placeholder:"STREAM" help:"Only stdout or stderr."`
	Raw    bool   `help:"The very bytes, without names before the lines. Mind what they do to a terminal."`
	JSON   bool   `name:"json" help:"One JSON line per piece of output; with --follow, per event."`
}

// Help is kong's.
func (logsCmd) Help() string {
	return `Examples:

    executor runs logs 3f2a --follow
    executor runs logs 3f2a --step build --stream stdout --raw > build.log`
}

// Run is kong's.
func (c *logsCmd) Run(ctx context.Context, a *app) (err error) {
	store, db, id, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	if c.Follow && !c.filters() {
		return a.follow(ctx, store, id, c.JSON, nil)
	}
	return c.print(ctx, a, store, id)
}

func (c *logsCmd) filters() bool { return c.Step != "" || c.Stream != "" || c.Raw }

// print writes the wanted output that is there, and that comes.
func (c *logsCmd) print(ctx context.Context, a *app, store *runs.Store, id uuid.UUID) error {
	var v view = newScreen(a)
	switch {
	case c.Raw:
		v = &rawView{w: a.out, note: a.err}
	case c.JSON:
		v = newJSONLines(a.out)
	}
	f := newFollower(store, id, onlyOutput{v, c.wants})
	for {
		d, err := f.poll(ctx)
		if err != nil {
			return err
		}
		if !c.Follow || d.Status.Terminal() {
			v.flush()
			if c.Follow {
				return endOf(d.Status)
			}
			return nil
		}
		if err := pause(ctx, f.pace()); err != nil {
			v.flush()
			return &ended{exitUnfinished}
		}
	}
}

func (c *logsCmd) wants(k runs.Chunk) bool {
	return (c.Step == "" || c.Step == k.Step || c.Step == placeName(k.Step, k.Member)) &&
		(c.Stream == "" || sandbox.Stream(c.Stream) == k.Stream)
}

// onlyOutput shows the wanted chunks and nothing else.
type onlyOutput struct {
	view
	wants func(runs.Chunk) bool
}

func (o onlyOutput) event(runs.Event)                            {}
func (o onlyOutput) began(string, runs.AttemptDetail)            {}
func (o onlyOutput) finished(step string, at runs.AttemptDetail) { o.view.flush() }
func (o onlyOutput) output(k runs.Chunk, gap int64) {
	if o.wants(k) {
		o.view.output(k, gap)
	}
}

// describeGap says what is missing before a chunk.
func describeGap(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return fmt.Sprintf("%d bytes were not kept", bytes)
	case bytes < 10<<20:
		return fmt.Sprintf("%d KiB were not kept", bytes>>10)
	}
	return fmt.Sprintf("%d MiB were not kept", bytes>>20)
}
