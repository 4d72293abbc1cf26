package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"executor/internal/runs"
	"executor/migrations"
)

type demoCmd struct {
	serving `embed:""`
	File    string   `arg:"" help:"The spec to run."`
	Env     []string `short:"e" sep:"none" placeholder:"K=V" help:"As of run."`
}

// Run is kong's.
func (c *demoCmd) Run(ctx context.Context, a *app) (err error) {
	run := runCmd{File: c.File, Env: c.Env, Queue: "default"}
	spec, err := run.spec(a)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintln(a.out, a.p.dim(fmt.Sprintf(format, args...))) }
	listener, err := listen(ctx, c.Listen, true)
	if err != nil {
		return err
	}
	defer listener.Close()
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	say("private Postgres in %s …", dir)
	db, err := a.openPrivate(ctx, poolSize(c.Workers))
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	if db.server.Joined() {
		say("joined the one that runs there")
	}
	if err := migrations.Up(ctx, db.pool, a.Schema, a.log); err != nil {
		return err
	}
	s, err := a.wire(ctx, c.serving, db, listener)
	if err != nil {
		return err
	}
	say("migrated, and serving http://%s", listener.Addr())

	serveCtx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.serve(serveCtx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	id, err := enqueue(ctx, s.store, spec, runs.Options{})
	if err != nil {
		return err
	}
	say("enqueued %s as %s\n", c.File, id)
	followCtx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	end := a.follow(followCtx, s.store, id, false, nil)
	say("\nto look at it again, and to try things: %s dev", os.Args[0])
	return end
}
