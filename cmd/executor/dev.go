package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/rs/zerolog"

	"executor/internal/runs"
	"executor/internal/sandbox/local"
	"executor/migrations"
)

type devCmd struct {
	serving `embed:""`
}

// Help is kong's.
func (devCmd) Help() string {
	return `Starts a private Postgres in the data directory, or joins the one that runs there, applies the migrations and serves until it is interrupted. Data survives. Commands in another terminal find the same Postgres by themselves.

    executor dev
    executor dev --data-dir /tmp/try --listen 127.0.0.1:9000`
}

// Run is kong's.
func (c *devCmd) Run(ctx context.Context, a *app) (err error) {
	a.logFrom(zerolog.InfoLevel)
	if a.DatabaseURL != "" {
		a.log.Warn().Msg("DATABASE_URL is set: dev does not use it, but the other commands will")
	}
	listener, err := listen(ctx, c.Listen, true)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(a.out, a.p.dim("starting a private Postgres …"))
	db, err := a.openPrivate(ctx, poolSize(c.Workers))
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	if err := migrations.Up(ctx, db.pool, a.Schema, a.log); err != nil {
		return err
	}
	s, err := a.wire(ctx, c.serving, db, listener)
	if err != nil {
		return err
	}
	s.begun = func() { c.announce(a, s, db) }
	err = s.serve(ctx)
	a.leftBehind(s)
	return err
}

// announce says where everything is.
func (c *devCmd) announce(a *app, s *service, db *database) {
	addr := s.listener.Addr().String()
	fmt.Fprintf(a.out, "\n%s\n\n", a.p.bold("executor "+version()+" is up"))
	fact := func(name, value, note string) {
		if note != "" {
			note = "   " + a.p.yellow(note)
		}
		fmt.Fprintf(a.out, "  %-10s %s%s\n", name, value, note)
	}
	otherPort := ""
	if c.Listen == defaultListen && addr != defaultListen {
		otherPort = defaultListen + " is taken"
	}
	joined := ""
	if db.server.Joined() {
		joined = "joined"
	}
	fact("API", "http://"+addr+"/v1/runs", otherPort)
	fact("OpenAPI", "http://"+addr+"/openapi.json", "")
	fact("River UI", "http://"+addr+"/riverui/", "")
	fact("Postgres", "psql '"+db.url+"'", joined)
	fact("data", a.DataDir, "")
	if s.local == nil {
		fact("hosts", "from "+strings.Join(c.Providers, ", "), "")
	} else if i := s.local.Isolation(); i.Mode == local.Plain {
		fact("processes", a.p.yellow("not isolated"), i.Why)
	} else {
		fact("processes", "isolated by bubblewrap", "")
	}
	fmt.Fprintf(a.out, "\n  Try, in another terminal:  %s\n\n", a.p.cyan("executor run -- sh -c 'echo hello; uname'"))
}

// leftBehind tells of runs whose processes go on without an executor.
func (a *app) leftBehind(s *service) {
	left, err := s.store.List(context.Background(), runs.Filter{Status: runs.Running})
	if err == nil && len(left) > 0 {
		fmt.Fprintf(a.out, "%d unfinished; their processes go on, and the next executor continues them\n", len(left))
	}
}
