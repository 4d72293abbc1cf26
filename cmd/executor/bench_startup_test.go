package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
)

// BenchmarkStartUp is what a sandbox costs: the time from nothing to the first
// byte of its first process, as a run gets it (through sandbox.Client, with the
// ledger in Postgres, of a detached process that is followed), beside the bare
// tool with the same command. They take turns, so that whatever else the
// machine does hits both. It fails where a provider costs more than it may.
func BenchmarkStartUp(b *testing.B) {
	t := table{header: []string{"PROVIDER", "BARE TOOL", "ITS FIRST BYTE", "ITS END", "OUR FIRST BYTE", "OVERHEAD"}}
	for _, s := range []startUp{
		{name: "local", pairs: 100, most: 20 * time.Millisecond, open: localBeside(isolation{})},
		{name: "local with limits", pairs: 50, most: 20 * time.Millisecond, open: localBeside(isolation{Memory: 1 << 30, CPUs: 2, PIDs: 1000})},
		{name: "docker", pairs: 30, mostPercent: 15, open: dockerBeside},
		{name: "drukbox", pairs: 30, open: drukboxBeside},
	} {
		b.Run(s.name, func(b *testing.B) { s.measure(b) })
		t.add(s.row()...)
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\nWhat a sandbox costs, from nothing to the first byte of its first process. Medians; both took turns.\n"+
		"The machine has %d CPUs and a load of %.4s: what else it does makes the differences larger.\n\n", runtime.NumCPU(), load)
	t.print(os.Stdout, palette{})
	fmt.Println()
}

// startUp is one line of the table.
type startUp struct {
	name        string
	pairs       int
	most        time.Duration // that we may take longer than the tool to its first byte; 0: no limit
	mostPercent float64       // that we may take longer than the tool to its end; 0: no limit
	open        func(*testing.B) (beside, error)

	tool    string
	bare    toolTook
	ours    weTook
	theirs  time.Duration // of ours, in which the provider's service made the host
	missing error         // why nothing was measured
}

// beside is a provider and the bare tool next to it.
type beside struct {
	sandbox.Provider
	tool   string
	bare   func(ours sandbox.Host) (toolTook, error)
	theirs func() time.Duration // of the last host; nil: the provider makes it itself
}

// toolTook is how long the bare tool took to its first byte, and to its end.
type toolTook struct{ first, end time.Duration }

// weTook is how long we took until there was a host, until its process was
// started, and until its first byte.
type weTook struct{ acquired, started, first time.Duration }

// warmUp pairs do not count.
const warmUp = 2

func (s *startUp) measure(b *testing.B) {
	s.missing = errors.New("it failed")
	p, err := s.open(b)
	if err != nil {
		s.missing = err
		b.Skip(err)
	}
	b.Cleanup(func() { // what a failure left, and the tool's own
		hosts, _ := p.List(context.Background())
		for _, host := range hosts {
			fatal(b, p.Delete(context.Background(), host.ID))
		}
	})
	ledger, run := ledgerOfARun(b)
	client := sandbox.NewClient(sandbox.DefaultTimeouts(), quiet(b).log, p.Provider)
	var ours []weTook
	var bare []toolTook
	var theirs []time.Duration
	for i := range warmUp + s.pairs {
		box, took, err := firstProcess(b.Context(), client, ledger, p.Name(), run, strconv.Itoa(i))
		fatal(b, err)
		tool, err := p.bare(box.Host())
		fatal(b, err)
		fatal(b, errors.Join(box.Close(), client.Delete(b.Context(), ledger, box.Entry())))
		if i < warmUp {
			continue
		}
		ours, bare = append(ours, took), append(bare, tool)
		if p.theirs != nil {
			theirs = append(theirs, p.theirs())
		}
	}
	s.missing, s.tool = nil, p.tool
	s.bare = toolTook{
		first: median(bare, func(t toolTook) time.Duration { return t.first }),
		end:   median(bare, func(t toolTook) time.Duration { return t.end }),
	}
	s.ours = weTook{
		acquired: median(ours, func(t weTook) time.Duration { return t.acquired }),
		started:  median(ours, func(t weTook) time.Duration { return t.started }),
		first:    median(ours, func(t weTook) time.Duration { return t.first }),
	}
	s.theirs = median(theirs, func(t time.Duration) time.Duration { return t })
	b.ReportMetric(inMS(s.overhead()), "overhead-ms")
	b.ReportMetric(0, "ns/op") // an average says nothing here
	s.judge(b)
}

func (s *startUp) judge(b *testing.B) {
	why := fmt.Sprintf("of ours the host took %s, starting the process %s more, and its first byte %s more",
		ms(s.ours.acquired), ms(s.ours.started-s.ours.acquired), ms(s.ours.first-s.ours.started))
	if s.most > 0 && s.overhead() >= s.most {
		b.Errorf("the overhead is %s, and has to be less than %s: %s", ms(s.overhead()), ms(s.most), why)
	}
	if s.mostPercent > 0 && s.percent() >= s.mostPercent {
		b.Errorf("the overhead is %.1f %%, and has to be less than %.0f %%: %s", s.percent(), s.mostPercent, why)
	}
}

func (s *startUp) overhead() time.Duration { return s.ours.first - s.theirs - s.bare.first }
func (s *startUp) percent() float64        { return 100 * (float64(s.ours.first)/float64(s.bare.end) - 1) }

func (s *startUp) row() []cell {
	if s.missing != nil {
		none := plain("-")
		return []cell{plain(s.name), none, none, none, none, plain("not measured: " + oneLine(s.missing.Error()))}
	}
	over := fmt.Sprintf("%+.1f ms", inMS(s.overhead()))
	switch {
	case s.most > 0:
		over += ", limit " + ms(s.most)
	case s.mostPercent > 0:
		over = fmt.Sprintf("%+.1f %% of its end, limit %.0f %%", s.percent(), s.mostPercent)
	case s.theirs > 0:
		over += " beside the " + ms(s.theirs) + " in which the control plane makes the host"
	}
	return []cell{plain(s.name), plain(s.tool), plain(ms(s.bare.first)), plain(ms(s.bare.end)), plain(ms(s.ours.first)), plain(over)}
}

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", inMS(d)) }

// median of none is 0.
func median[T any](of []T, value func(T) time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	values := make([]time.Duration, len(of))
	for i, v := range of {
		values[i] = value(v)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// greeting is the command: every image has it.
var greeting = []string{"echo", "hello"}

// firstProcess makes a host, starts a process in it and waits until what it
// prints is here.
func firstProcess(ctx context.Context, client *sandbox.Client, ledger sandbox.Ledger, provider, run, step string) (box *sandbox.Sandbox, took weTook, err error) {
	begun := time.Now()
	box, err = client.Acquire(ctx, ledger, provider, sandbox.HostSpec{Key: sandbox.StepKey(run, step), RunID: run})
	if err != nil {
		return nil, took, err
	}
	took.acquired = time.Since(begun)
	launch := sandbox.Launch{RunID: run, Step: step, N: 1}
	if _, err := box.Start(ctx, launch, sandbox.Command{Argv: greeting}); err != nil {
		return nil, took, err
	}
	took.started = time.Since(begun)
	exit, err := box.Follow(ctx, launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error {
		took.first = time.Since(begun)
		return nil
	})
	if err == nil && (!exit.Success() || took.first == 0) {
		err = fmt.Errorf("it printed nothing, or failed: %+v", exit)
	}
	return box, took, err
}

// bareTool runs a command of this machine to its end.
func bareTool(argv ...string) (took toolTook, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return toolTook{}, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return toolTook{}, err
	}
	_, err = io.ReadFull(out, make([]byte, 1))
	took.first = time.Since(begun)
	_, _ = io.Copy(io.Discard, out)
	err = errors.Join(err, cmd.Wait())
	took.end = time.Since(begun)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", argv[0], err, complaint.String())
	}
	return took, err
}

// ledgerOfARun is the ledger in Postgres of a run that is being worked on.
func ledgerOfARun(b *testing.B) (ledger sandbox.Ledger, run string) {
	ctx, store, executor := b.Context(), runstest.New(b), uuid.New()
	fatal(b, store.Register(ctx, runs.ExecutorInfo{ID: executor, Machine: "bench"}))
	id, err := store.Enqueue(ctx, store.Pool(), runs.Spec{Steps: []runs.Step{{Name: "a", Argv: greeting}}}, runs.Options{})
	fatal(b, err)
	var job int64
	fatal(b, store.Pool().QueryRow(ctx, `
		UPDATE executor.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = ARRAY[$2::text]
		WHERE id = (SELECT job_id FROM executor.runs WHERE id = $1) RETURNING id`, id, executor).Scan(&job))
	claim, _, err := store.Claim(ctx, id, job, executor)
	fatal(b, err)
	return store.Ledger(claim, "bench"), id.String()
}

// quiet is an app that logs errors only.
func quiet(b *testing.B) *app {
	return newApp(globals{DataDir: b.TempDir(), LogLevel: "error"}, stdio{nil, io.Discard, os.Stderr})
}
