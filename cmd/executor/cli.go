package main

import (
	"context"
	"errors"
	"strings"

	"github.com/alecthomas/kong"
)

// cli is the grammar of the command line.
type cli struct {
	globals

	Dev     devCmd     `cmd:"" help:"Serve on a private Postgres, for trying things by hand."`
	Serve   serveCmd   `cmd:"" help:"Serve: execute runs from DATABASE_URL."`
	Migrate migrateCmd `cmd:"" help:"Bring the database to this program's schema, or say how far it is."`
	Run     runCmd     `cmd:"" help:"Enqueue a run, and follow it."`
	Runs    runsCmd    `cmd:"" help:"List, show, cancel and retry runs, and print their output."`
	Codes   codesCmd   `cmd:"" help:"List every failure code, its policy and meaning."`
	Doctor  doctorCmd  `cmd:"" help:"Check Postgres, the migrations and the provider, on a real host."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Demo demoCmd `cmd:"" hidden:"" help:"Serve on a private Postgres, run a spec to its end, and leave."`

	Help helpFlag `short:"h" help:"Show help."`
}

// helpFlag prints help and ends the parse.
type helpFlag bool

var errHelpShown = errors.New("help was shown")

// BeforeReset is kong's hook.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	return errors.Join(ctx.PrintUsage(false), errHelpShown)
}

const description = `Runs AI coding agents, or any command, in sandboxes, from a queue in your own Postgres.

Try it:

    executor dev                                 # in one terminal
    executor run -- sh -c 'echo hello; uname'    # in another
    executor runs list

` + exitHelp

// run parses the command line and carries it out.
func run(ctx context.Context, args []string, io stdio) error {
	var flags cli
	parser, err := kong.New(&flags,
		kong.Name("executor"),
		kong.Description(description),
		kong.Writers(io.out, io.err),
		kong.NoDefaultHelp(),
		kong.ConfigureHelp(kong.HelpOptions{WrapUpperBound: 110, FlagsLast: true, NoExpandSubcommands: true}),
		kong.Vars{"data_dir": defaultDataDir(), "listen": defaultListen, "hide": strings.Join(defaultHide, ",")},
	)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return err
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(newApp(flags.globals, io))
}
