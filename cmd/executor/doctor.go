package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox/local"
	"executor/migrations"
)

type doctorCmd struct {
	isolation `embed:""`
	providing `embed:""`
	Unit      string `env:"EXECUTOR_UNIT" default:"executor.service" placeholder:"NAME" help:"systemd's unit of the executor, where there is one (${default})."`
	JSON      bool   `name:"json" help:"One JSON document."`

	Attach attaching `embed:"" prefix:"attach-"`
}

// Help is kong's.
func (doctorCmd) Help() string {
	return `Checks the database and its migrations, and takes a real host of each provider through its life: the provider lets us in, a host is created, a process is started in it, another process of this program finds it again and reads its output to the end, and the host is deleted. Says what is not isolated, and whether a restart of the executor would kill running processes. Exit status 4 when something fails.`
}

// diagnosis is what doctor found out.
type diagnosis struct {
	OK        bool     `json:"ok"`
	Version   string   `json:"version"`
	Checks    []*check `json:"checks"`
	Isolation string   `json:"isolation,omitempty"`
	Open      []string `json:"not_isolated,omitempty"`
}

// check is one thing that was tried.
type check struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Millis float64 `json:"ms"`
	Detail string  `json:"detail,omitempty"`
	Code   string  `json:"failure_code,omitempty"` // of a provider's fault
	Error  string  `json:"error,omitempty"`
}

// try adds a check. The ones after a failed one are its caller's to skip.
func (d *diagnosis) try(name string, do func() (detail string, err error)) bool {
	begun := time.Now()
	detail, err := do()
	c := &check{Name: name, OK: err == nil, Millis: float64(time.Since(begun).Microseconds()) / 1000, Detail: detail}
	if err != nil {
		d.OK = false
		c.Error = err.Error()
		if faults.Classified(err) {
			c.Code = faults.Of(err).Kind.Code()
		}
	}
	d.Checks = append(d.Checks, c)
	return c.OK
}

// Validate is called by kong.
func (c *doctorCmd) Validate() error { return c.providing.check() }

// Run is kong's.
func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	a.logFrom(zerolog.ErrorLevel) // what is worth a warning is in the answer
	if c.Attach.Run != "" {
		return c.attach(ctx, a)
	}
	d := &diagnosis{OK: true, Version: version()}
	db := c.checkDatabase(ctx, a, d)
	if db != nil {
		defer db.close()
	}
	for _, name := range c.Providers {
		c.checkProvider(ctx, a, db, d, name)
	}
	if slices.Contains(c.Providers, "local") {
		d.try("survival", func() (string, error) {
			return "nothing seen that would end local processes with the executor", supervisorOf(ctx, c.Unit).mortal()
		})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.JSON {
		if err := a.printJSON(d); err != nil {
			return err
		}
	} else {
		a.printDiagnosis(d)
	}
	if !d.OK {
		return &ended{exitTrouble}
	}
	return nil
}

func (c *doctorCmd) checkDatabase(ctx context.Context, a *app, d *diagnosis) *database {
	var db *database
	if !d.try("postgres", func() (detail string, err error) {
		if db, err = a.open(ctx, clientConns); err != nil {
			return "", err
		}
		return describePostgres(ctx, db.pool)
	}) {
		return db
	}
	d.try("migrations", func() (string, error) {
		all, err := migrations.Status(ctx, db.pool, a.Schema)
		if err == nil {
			err = migrations.Check(ctx, db.pool, a.Schema)
		}
		return fmt.Sprintf("%d applied in schema %s", len(all), a.Schema), err
	})
	return db
}

// describePostgres asks what the server told at the start, and how long an
// answer takes now that the connection is there.
func describePostgres(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	begun := time.Now()
	if err := conn.Ping(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("PostgreSQL %s, answers in %.1f ms", conn.Conn().PgConn().ParameterStatus("server_version"),
		float64(time.Since(begun).Microseconds())/1000), nil
}

func (a *app) printDiagnosis(d *diagnosis) {
	t := table{header: []string{"", "CHECK", "TIME", "FOUND"}}
	for _, c := range d.Checks {
		mark, detail := cell{"ok", a.p.green}, plain(oneLine(c.Detail))
		if !c.OK {
			mark, detail = cell{"FAIL", a.p.red}, plain(oneLine(c.Error))
		}
		t.add(mark, plain(c.Name), plain(fmt.Sprintf("%.1f ms", c.Millis)), detail)
	}
	t.print(a.out, a.p)
	if len(d.Open) > 0 { // the local provider's
		colour := a.p.bold
		if d.Isolation == string(local.Plain) {
			colour = a.p.yellow
		}
		fmt.Fprintf(a.out, "\n%s\n", colour("Local processes ("+d.Isolation+"). What is not isolated:"))
		for _, open := range d.Open {
			for i, l := range wrap(open, max(widthOf(a.out)-4, 0)) {
				fmt.Fprintf(a.out, "%s%s\n", [...]string{"  - ", "    "}[min(i, 1)], l)
			}
		}
	}
}

var errDoctor = errors.New("it is not what was expected")
