package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/rs/zerolog"

	"executor/migrations"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply what is missing. Any number of processes may do it at once."`
	Status migrateStatusCmd `cmd:"" help:"List every migration and whether it is applied; changes nothing."`
}

type migrateUpCmd struct{}

// Help is kong's.
func (migrateUpCmd) Help() string {
	return `Examples:

    DATABASE_URL=postgres://app@db/app executor migrate up
    executor migrate up --schema jobs`
}

// Run is kong's.
func (c *migrateUpCmd) Run(ctx context.Context, a *app) (err error) {
	a.logFrom(zerolog.InfoLevel)
	db, err := a.open(ctx, clientConns)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	if err := migrations.Up(ctx, db.pool, a.Schema, a.log); err != nil {
		return err
	}
	all, err := migrations.Status(ctx, db.pool, a.Schema)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "schema %s is up to date: %d migrations\n", a.Schema, len(all))
	return nil
}

type migrateStatusCmd struct {
	JSON bool `name:"json" help:"One JSON document."`
}

// migration is migrations.Migration for programs.
type migration struct {
	Line    string `json:"line"`
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// Run is kong's. A database that is behind is exit status 1.
func (c *migrateStatusCmd) Run(ctx context.Context, a *app) (err error) {
	db, err := a.open(ctx, clientConns)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	all, err := migrations.Status(ctx, db.pool, a.Schema)
	if err != nil {
		return err
	}
	list, pending := make([]migration, len(all)), 0
	t := table{header: []string{"LINE", "VERSION", "APPLIED", "NAME"}}
	for i, m := range all {
		list[i] = migration(m)
		applied := cell{"yes", a.p.green}
		if !m.Applied {
			applied = cell{"no", a.p.yellow}
			pending++
		}
		t.add(plain(m.Line), plain(strconv.FormatInt(m.Version, 10)), applied, plain(m.Name))
	}
	if c.JSON {
		err = a.printJSON(list)
	} else {
		t.print(a.out, a.p)
	}
	if err == nil && pending > 0 {
		fmt.Fprintf(a.err, "%d missing in schema %s; run: executor migrate up\n", pending, a.Schema)
		return &ended{exitFailed}
	}
	return err
}
