package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"executor/internal/runs"
)

// The exit statuses. The table in README.md and in --help says the same.
const (
	exitOK         = 0 // done, or the run succeeded
	exitFailed     = 1 // the run failed
	exitUsage      = 2 // what was asked for makes no sense: flags, spec, unknown run
	exitCancelled  = 3 // the run was cancelled
	exitTrouble    = 4 // Postgres, the provider or the machine
	exitUnfinished = 5 // the run has not ended, and nobody waits for it any more
)

const exitHelp = `Exit statuses:

    0  done; of a followed run: it succeeded
    1  the run failed
    2  the request makes no sense: flags, the spec, an unknown run
    3  the run was cancelled
    4  trouble with Postgres, the provider or this machine
    5  the run has not ended: following it was interrupted`

// ended carries a run's end to the exit status. The user has been told.
type ended struct{ status int }

func (e *ended) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// endOf is the exit status of a run, as an error.
func endOf(s runs.Status) error {
	switch s {
	case runs.Succeeded:
		return nil
	case runs.Failed:
		return &ended{exitFailed}
	case runs.Cancelled:
		return &ended{exitCancelled}
	}
	return &ended{exitUnfinished}
}

// usage is an error of whoever typed the command.
type usage struct{ err error }

func (u *usage) Error() string { return u.err.Error() }
func (u *usage) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return &usage{fmt.Errorf(format, args...)} }

// report prints an error for the user and returns the exit status.
func report(w io.Writer, err error) int {
	var (
		end   *ended
		spec  *runs.SpecError
		wrong *usage
		parse *kong.ParseError
	)
	switch {
	case err == nil || errors.Is(err, errHelpShown):
		return exitOK
	case errors.As(err, &end):
		return end.status
	case errors.As(err, &spec):
		reportSpec(w, err, spec)
		return exitUsage
	case errors.As(err, &parse):
		fmt.Fprintf(w, "executor: %v\nTry: executor %s--help\n", err, commandPath(parse.Context))
		return exitUsage
	}
	fmt.Fprintf(w, "executor: %s\n", clean(err.Error()))
	if errors.As(err, &wrong) || errors.Is(err, runs.ErrNotFound) || errors.Is(err, runs.ErrNotRetryable) {
		return exitUsage
	}
	if errors.Is(err, context.Canceled) {
		return exitUnfinished
	}
	return exitTrouble
}

// reportSpec prints one line for each problem, the fields aligned.
func reportSpec(w io.Writer, err error, spec *runs.SpecError) {
	where := "the spec"
	var in *specIn
	if errors.As(err, &in) {
		where = in.where
	}
	fmt.Fprintf(w, "executor: %s cannot be run:\n", where)
	width := 0
	for _, p := range spec.Problems {
		width = max(width, len(fieldOf(p)))
	}
	for _, p := range spec.Problems {
		fmt.Fprintf(w, "  %-*s  %s\n", width, fieldOf(p), clean(p.Message))
	}
}

func fieldOf(p runs.Problem) string {
	if p.Field == "" {
		return "(all of it)"
	}
	return clean(p.Field)
}

func commandPath(ctx *kong.Context) string {
	path := ""
	if ctx != nil {
		for _, p := range ctx.Path {
			if p.Command != nil {
				path += p.Command.Name + " "
			}
		}
	}
	return path
}
