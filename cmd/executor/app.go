package main

import (
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// app is what every command works with.
type app struct {
	globals
	stdio
	log zerolog.Logger
	p   palette // of stdout
}

func newApp(g globals, io stdio) *app {
	return &app{globals: g, stdio: io, log: newLog(g, io.err, zerolog.WarnLevel), p: colours(io.out)}
}

// logFrom sets the level for a command that is to say more, or less, than the
// others. The user's own choice wins.
func (a *app) logFrom(level zerolog.Level) { a.log = newLog(a.globals, a.err, level) }

// newLog is the one log stream: for a reader on a terminal, else JSON.
func newLog(g globals, w io.Writer, level zerolog.Level) zerolog.Logger {
	if g.LogLevel != "" {
		if named, err := zerolog.ParseLevel(g.LogLevel); err == nil {
			level = named
		}
	}
	if g.LogFormat == "console" || g.LogFormat == "auto" && isTerminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !colours(w).on}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// printJSON writes one JSON document for programs.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// joinClose adds the error of a closer to what a function returns.
func joinClose(err *error, close func() error) { *err = errors.Join(*err, close()) }
