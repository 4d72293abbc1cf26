package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// config is what the command line says.
type config struct {
	seed      uint64
	duration  time.Duration
	executors int
	runs      int
	faults    string
	floor     int
	keep      bool
	json      bool
}

func main() {
	var c config
	flag.Uint64Var(&c.seed, "seed", 0, "of everything that is random; 0: a fresh one")
	flag.DurationVar(&c.duration, "for", 2*time.Minute, "how long things are broken")
	flag.IntVar(&c.executors, "executors", 4, "how many executors")
	flag.IntVar(&c.runs, "runs", 0, "how many runs; 0: five in two seconds")
	flag.StringVar(&c.faults, "faults", strings.Join(allFaults, ","), "which faults")
	flag.IntVar(&c.floor, "floor", -1, "kills that hit a running step, and re-attachments, below which it fails; -1: one in six seconds")
	flag.BoolVar(&c.keep, "keep", false, "keep the directory also when all is well")
	flag.BoolVar(&c.json, "json", false, "print the figures as JSON at the end")
	flag.Parse()
	if c.seed == 0 {
		c.seed = rand.Uint64() >> 32
	}
	if c.runs == 0 {
		c.runs = int(c.duration.Seconds() * 2.5)
	}
	if c.floor < 0 {
		c.floor = int(c.duration.Seconds() / 6)
	}
	for f := range strings.SplitSeq(c.faults, ",") {
		if !slices.Contains(allFaults, f) {
			fmt.Fprintf(os.Stderr, "chaos: -faults: there is no %q; there are %s\n", f, strings.Join(allFaults, ", "))
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

var errViolated = errors.New("FAIL")

func run(ctx context.Context, c config) (err error) {
	fmt.Printf("seed %d: %d runs, %d executors, %s of %s\n", c.seed, c.runs, c.executors, c.duration, c.faults)
	dir, err := os.MkdirTemp("", "executor-chaos-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil || c.keep {
			fmt.Println("logs and data:", dir)
			return
		}
		_ = os.RemoveAll(dir)
	}()
	w, err := build(ctx, c, dir)
	defer w.tearDown()
	if err != nil {
		return err
	}
	if err := w.storm(ctx); err != nil {
		return err
	}
	if err := w.heal(ctx); err != nil {
		return err
	}
	e, err := w.gather(ctx)
	if err != nil {
		return err
	}
	r := w.prove(e)
	r.print(c)
	if len(r.violations) > 0 {
		return errViolated
	}
	return nil
}
