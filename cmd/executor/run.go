package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"executor/internal/runs"
)

type runCmd struct {
	File           string        `short:"f" placeholder:"FILE" help:"The run's spec as JSON; - is standard input."`
	Follow         *bool         `negatable:"" help:"Print the run's progress and output until it ends, and exit as it did. Default for a command, not for a file."`
	Name           string        `placeholder:"NAME" help:"The run's name, for people."`
	Timeout        time.Duration `placeholder:"DURATION" help:"Limit for the whole run, waits included."`
	Env            []string      `short:"e" sep:"none" placeholder:"K=V" help:"Environment of every step; K alone takes its value from here. Values are never shown again."`
	Offline        bool          `help:"Cut the steps off from the network, where the provider can."`
	IdempotencyKey string        `placeholder:"KEY" help:"A repeated key returns the run that it named first."`
	Queue          string        `default:"default" placeholder:"NAME" help:"Queue of the run (${default})."`
	JSON           bool          `name:"json" help:"JSON for programs: one document, or with --follow one line per event."`
	Argv           []string      `arg:"" optional:"" name:"command" help:"The command to run, after --."`
}

// Help is kong's.
func (runCmd) Help() string {
	return `Examples:

    executor run -f examples/build-and-test.json --follow
    executor run -- sh -c 'echo hello; uname -a'
    executor run --offline --timeout 10m -e TOKEN -- ./agent --fast
    generate-spec | executor run -f - --idempotency-key order-1234

With a private Postgres a command gets your PATH, since it runs on this machine; elsewhere it gets the host's.

` + exitHelp
}

// specIn is a spec's error with where the spec came from.
type specIn struct {
	where string
	err   error
}

func (s *specIn) Error() string { return s.where + ": " + s.err.Error() }
func (s *specIn) Unwrap() error { return s.err }

// Run is kong's.
func (c *runCmd) Run(ctx context.Context, a *app) (err error) {
	spec, err := c.spec(a)
	if err != nil {
		return err
	}
	store, db, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer joinClose(&err, db.close)
	if _, given := spec.Env["PATH"]; c.File == "" && db.server != nil && !given {
		spec.Env["PATH"] = searchPath()
	}
	id, err := enqueue(ctx, store, spec, runs.Options{IdempotencyKey: c.IdempotencyKey, Queue: c.Queue})
	if err != nil {
		return err
	}
	if c.follows() {
		return a.follow(ctx, store, id, c.JSON, nil)
	}
	if c.JSON {
		summary, err := store.Summary(ctx, id)
		return errors.Join(err, a.printJSON(summary))
	}
	fmt.Fprintln(a.out, id)
	return nil
}

func (c *runCmd) follows() bool {
	if c.Follow != nil {
		return *c.Follow
	}
	return c.File == ""
}

// spec is what the flags ask for.
func (c *runCmd) spec(a *app) (runs.Spec, error) {
	var spec runs.Spec
	where := "the command"
	switch {
	case c.File != "" && len(c.Argv) > 0:
		return spec, usagef("expected a file or a command, got both")
	case c.File == "" && len(c.Argv) == 0:
		return spec, usagef("expected -f FILE or -- COMMAND")
	case c.File != "":
		var err error
		if where = c.File; where == "-" {
			where = "standard input"
		}
		if spec, err = readSpec(a.in, c.File); err != nil {
			return spec, &specIn{where, err}
		}
	default:
		spec.Steps = []runs.Step{{Name: stepName(c.Argv[0]), Argv: c.Argv}}
	}
	if spec.Env == nil {
		spec.Env = map[string]string{}
	}
	for _, pair := range c.Env {
		k, v, given := strings.Cut(pair, "=")
		if !given {
			if v, given = os.LookupEnv(k); !given {
				return spec, usagef("--env %s: expected K=V, or a variable that is set here", clean(k))
			}
		}
		spec.Env[k] = v
	}
	if c.Name != "" {
		spec.Name = c.Name
	}
	if c.Timeout != 0 {
		spec.Timeout = runs.Duration(c.Timeout)
	}
	spec.Offline = spec.Offline || c.Offline
	if err := spec.Validate(); err != nil {
		return spec, &specIn{where, err}
	}
	return spec, nil
}

func readSpec(stdin io.Reader, file string) (runs.Spec, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return runs.Spec{}, &usage{err}
		}
		defer f.Close()
		stdin = f
	}
	data, err := io.ReadAll(io.LimitReader(stdin, runs.MaxSpecBytes+1))
	if err != nil {
		return runs.Spec{}, &usage{err}
	}
	return runs.ParseSpec(data)
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// stepName names the one step of a command after its program.
func stepName(program string) string {
	name := notInName.ReplaceAllString(program[strings.LastIndexByte(program, '/')+1:], "-")
	if name = name[:min(64, len(name))]; name == "" || name == "sandbox" {
		return "command"
	}
	return name
}

func enqueue(ctx context.Context, store *runs.Store, spec runs.Spec, o runs.Options) (uuid.UUID, error) {
	id, err := store.Enqueue(ctx, store.Pool(), spec, o)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == pgerrcode.InvalidParameterValue || refused.Code == pgerrcode.UniqueViolation) {
		return id, &usage{errors.New(refused.Message)}
	}
	return id, err
}
