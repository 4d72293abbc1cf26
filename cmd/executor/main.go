// Command executor runs agent runs from a queue in Postgres. This package is
// its command line: it owns the configuration, is the only place that reads the
// environment, and wires the packages below it together.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// stdio is where a command reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	err := run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr})
	os.Exit(report(os.Stderr, err))
}
