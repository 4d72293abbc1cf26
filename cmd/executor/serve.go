package main

import (
	"context"

	"github.com/rs/zerolog"

	"executor/migrations"
)

type serveCmd struct {
	serving `embed:""`
}

// Help is kong's.
func (serveCmd) Help() string {
	return `Needs a migrated database: run "executor migrate up" first. SIGTERM lets go of running processes without ending them; the next executor goes on with them. Start as many as you like on one database.

    DATABASE_URL=postgres://app@db/app executor serve --workers 20
    executor serve --queues default --queues slow`
}

// Run is kong's.
func (c *serveCmd) Run(ctx context.Context, a *app) (err error) {
	a.logFrom(zerolog.InfoLevel)
	if a.DatabaseURL == "" {
		return usagef("serve needs DATABASE_URL (--database-url); for a private Postgres there is \"executor dev\"")
	}
	listener, err := listen(ctx, c.Listen, false)
	if err != nil {
		return err
	}
	defer listener.Close()
	var db *database
	err = a.patiently(ctx, func(ctx context.Context) (err error) {
		db, err = connect(ctx, a.DatabaseURL, poolSize(c.Workers))
		return err
	})
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	err = a.patiently(ctx, func(ctx context.Context) error { return migrations.Check(ctx, db.pool, a.Schema) })
	if err != nil {
		return err
	}
	s, err := a.wire(ctx, c.serving, db, listener)
	if err != nil {
		return err
	}
	if err := supervisorOf(ctx, "").mortal(); err != nil {
		a.log.Warn().Err(err).Msg("a restart will interrupt runs")
	}
	a.log.Info().Stringer("listen", listener.Addr()).Str("version", version()).Msg("serving")
	return s.serve(ctx)
}
