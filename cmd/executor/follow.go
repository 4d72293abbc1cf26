package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

const (
	pollFast = 50 * time.Millisecond // while something happens
	pollSlow = 250 * time.Millisecond
	pageSize = 100              // chunks a query
	patience = 30 * time.Second // with a Postgres that does not answer
)

// view is shown what happens to a run, in the order in which it happened.
type view interface {
	event(e runs.Event)
	began(step string, at runs.AttemptDetail)
	output(k runs.Chunk, gap int64) // gap bytes before k were not kept
	finished(step string, at runs.AttemptDetail)
	flush()
}

// follow shows a run until it ends, and returns its end. With from, what is in
// there already is not shown.
func (a *app) follow(ctx context.Context, store *runs.Store, id uuid.UUID, asJSON bool, from *runs.Detail) error {
	screen := newScreen(a)
	var v view = screen
	if asJSON {
		v = newJSONLines(a.out)
	}
	f := newFollower(store, id, v)
	if from != nil {
		if err := f.skip(ctx, *from); err != nil {
			return err
		}
	}
	if !asJSON {
		d, err := store.Get(ctx, id)
		if err != nil {
			return err
		}
		screen.title(d)
	}
	begun := time.Now()
	for {
		d, err := f.poll(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && d.Status.Terminal() {
			v.flush()
			if asJSON {
				err = v.(*jsonLines).end(d)
			} else {
				screen.end(d)
			}
			return errors.Join(err, endOf(d.Status))
		}
		if !asJSON && err == nil {
			screen.progress(d, time.Since(begun))
		}
		if pause(ctx, f.pace()) != nil {
			v.flush()
			fmt.Fprintf(a.err, "\nno longer followed; the run goes on. Back to it: executor runs logs %[1]s --follow   End it: executor runs cancel %[1]s\n", id.String()[:8])
			return &ended{exitUnfinished}
		}
	}
}

// follower tells a view what is new of a run.
type follower struct {
	store *runs.Store
	id    uuid.UUID
	view  view

	events int                 // shown
	tries  map[tryKey]bool     // shown: begun (false) and ended (true)
	after  int64               // every chunk up to it was shown
	ends   map[streamKey]int64 // where each stream's shown bytes end
	idle   int                 // polls without news

	last   runs.Detail // as it was seen last
	silent time.Time   // since when Postgres has not answered
}

type tryKey struct {
	step, member string
	n            int
}

type streamKey struct {
	step, member string
	launch       int
	stream       sandbox.Stream
}

func newFollower(store *runs.Store, id uuid.UUID, v view) *follower {
	return &follower{store: store, id: id, view: v, tries: map[tryKey]bool{}, ends: map[streamKey]int64{}}
}

// pace is how long to wait before the next poll.
func (f *follower) pace() time.Duration {
	if f.idle > 20 {
		return pollSlow
	}
	return pollFast
}

// news is something to show, and when it happened.
type news struct {
	at   time.Time
	show func()
}

// poll shows what is new and returns the run. While Postgres does not answer,
// that is the run as it was.
func (f *follower) poll(ctx context.Context) (runs.Detail, error) {
	d, err := f.look(ctx)
	switch {
	case err == nil:
		f.last, f.silent = d, time.Time{}
	case ctx.Err() != nil || errors.Is(err, runs.ErrNotFound) || f.last.ID == uuid.Nil:
		return d, err
	case f.silent.IsZero():
		f.silent = time.Now()
	case time.Since(f.silent) > patience:
		return d, err
	}
	return f.last, nil
}

// look reads the run before its output, so that an ended attempt's output is
// complete.
func (f *follower) look(ctx context.Context) (runs.Detail, error) {
	d, err := f.store.Get(ctx, f.id)
	if err != nil {
		return d, err
	}
	var all []news
	for {
		chunks, err := f.next(ctx)
		if err != nil {
			return d, err
		}
		for _, k := range chunks {
			all = append(all, news{k.At, func() { f.show(k) }})
		}
		if len(chunks) < pageSize {
			break
		}
		// A flood: what came before it is not held back.
		f.tell(all)
		all = nil
	}
	// What has one time came from one transaction: an attempt ends before the
	// run moves, and begins after.
	began, finished := f.attempts(d)
	all = append(all, finished...)
	for _, e := range d.Events[min(f.events, len(d.Events)):] {
		all = append(all, news{e.At, func() { f.view.event(e) }})
	}
	f.events = len(d.Events)
	f.tell(append(all, began...))
	return d, nil
}

// attempts is what is new of the attempts.
func (f *follower) attempts(d runs.Detail) (began, finished []news) {
	for _, s := range d.Steps {
		for _, at := range s.Attempts {
			key := tryKey{s.Name, at.Member, at.N}
			shownEnded, shownBegun := f.tries[key]
			if !shownBegun {
				began = append(began, news{at.StartedAt, func() { f.view.began(s.Name, at) }})
			}
			if at.EndedAt != nil && !shownEnded {
				finished = append(finished, news{*at.EndedAt, func() { f.view.finished(s.Name, at) }})
			}
			f.tries[key] = at.EndedAt != nil
		}
	}
	return began, finished
}

// tell shows news by time; all times are the database's.
func (f *follower) tell(all []news) {
	slices.SortStableFunc(all, func(a, b news) int { return a.at.Compare(b.at) })
	for _, n := range all {
		n.show()
	}
	f.idle++
	if len(all) > 0 {
		f.idle = 0
	}
}

// next reads the next chunks that were not shown.
func (f *follower) next(ctx context.Context) ([]runs.Chunk, error) {
	chunks, err := f.store.Output(ctx, f.id, f.after, pageSize)
	if err == nil && len(chunks) > 0 {
		f.after = chunks[len(chunks)-1].Seq
	}
	return chunks, err
}

func (f *follower) show(k runs.Chunk) {
	key := streamKey{k.Step, k.Member, k.Launch, k.Stream}
	gap := k.Pos - f.ends[key]
	f.ends[key] = k.Pos + int64(len(k.Data))
	f.view.output(k, gap)
}

// skip counts all that is there as shown.
func (f *follower) skip(ctx context.Context, d runs.Detail) error {
	quiet := f.view
	f.view = noView{}
	defer func() { f.view = quiet }()
	for {
		chunks, err := f.next(ctx)
		if err != nil {
			return err
		}
		for _, k := range chunks {
			f.show(k)
		}
		if len(chunks) < pageSize {
			break
		}
	}
	f.events = len(d.Events)
	f.attempts(d)
	return nil
}

// noView shows nothing.
type noView struct{}

func (noView) event(runs.Event)                    {}
func (noView) began(string, runs.AttemptDetail)    {}
func (noView) output(runs.Chunk, int64)            {}
func (noView) finished(string, runs.AttemptDetail) {}
func (noView) flush()                              {}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
