package api_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"executor/internal/api"
	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// plant is a front with River UI, and an executor behind it whose sandboxes
// are scripted.
type plant struct {
	*front
	fake *sandboxtest.Fake
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	t.Parallel()
	p := &plant{&front{t: t, store: runstest.New(t), log: &syncBuffer{}}, sandboxtest.NewFake()}
	log := runstest.Log(t).Level(zerolog.InfoLevel)
	client, err := jobs.NewInspector(p.store, log)
	if err != nil {
		t.Fatal(err)
	}
	ui, err := api.NewRiverUI(t.Context(), client, log)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api.New(api.Config{Store: p.store, RiverUI: ui, Log: zerolog.New(p.log)}))
	t.Cleanup(server.Close)
	p.url = server.URL
	p.work(log)
	return p
}

// work runs an executor until the test ends.
func (p *plant) work(log zerolog.Logger) {
	p.t.Helper()
	sandboxes := sandbox.NewClient(sandbox.DefaultTimeouts(), log, p.fake)
	config := jobs.DefaultConfig()
	config.Machine = "m1"
	executor := &jobs.Executor{
		Config: config, Store: p.store, Sandboxes: sandboxes, Log: log, Metrics: jobs.NewMetrics(prometheus.NewRegistry()),
		Runner: &runs.Runner{
			Store: p.store, Sandboxes: sandboxes, Provider: p.fake.Name(), OutputCap: 1 << 20, Log: log,
			Now: time.Now, Jitter: func() float64 { return 0.5 },
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- executor.Run(ctx) }()
	p.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			p.t.Errorf("the executor ended with %v", err)
		}
	})
}

func step(name string) string { return fmt.Sprintf(`{"steps": [{"name": %q, "shell": "true"}]}`, name) }

// await waits until the run has the status and its job the state.
func (p *plant) await(id uuid.UUID, status runs.Status, job string) runs.Summary {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		run, err := p.store.Summary(p.t.Context(), id)
		if err != nil {
			p.t.Fatal(err)
		}
		var state string
		err = p.store.Pool().QueryRow(p.t.Context(), `SELECT state FROM executor.river_job WHERE id = $1`, run.JobID).Scan(&state)
		if err == nil && run.Status == status && state == job {
			return run
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain for %s and %s: got %s and %s (%v)", status, job, run.Status, state, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// River UI shows every run's job in the state that says the same.
func TestRiverUIShowsStates(t *testing.T) {
	p := newPlant(t)
	b := newBrowser(t)
	p.fake.Script("bad", sandboxtest.Proc{Exit: 3})
	p.fake.Script("lost", sandboxtest.Proc{Lost: true})
	p.fake.Script("hang", sandboxtest.Proc{Hang: true})

	good, bad, lost, hang := p.submit(step("good")), p.submit(step("bad")), p.submit(step("lost")), p.submit(step("hang"))
	good = p.await(good.ID, runs.Succeeded, "completed")
	bad = p.await(bad.ID, runs.Failed, "discarded")
	lost = p.await(lost.ID, runs.BackingOff, "scheduled")
	p.await(hang.ID, runs.Running, "running")
	p.request("POST", "/v1/runs/"+hang.ID.String()+"/cancel", "")
	hang = p.await(hang.ID, runs.Cancelled, "cancelled")

	shown := map[string]runs.Summary{"Completed": good, "Discarded": bad, "Scheduled": lost, "Cancelled": hang}
	for state, run := range shown {
		b.open(p.jobsIn(state))
		b.see(linkTo(run))
		for other, run := range shown {
			if other != state && b.has(linkTo(run)) {
				t.Errorf("the job that is to stand under %s stands under %s", other, state)
			}
		}
		b.open(p.job(run))
		b.read("State " + state)
		b.read(run.ID.String())
	}
	b.open(p.job(bad))
	b.read("command_failed: ")
	b.open(p.job(lost))
	b.read(`"sandbox_lost"`)
}

func (p *plant) job(run runs.Summary) string {
	return fmt.Sprintf("%s/riverui/jobs/%d", p.url, run.JobID)
}

func (p *plant) jobsIn(state string) string {
	return p.url + "/riverui/jobs?state=" + strings.ToLower(state)
}

func linkTo(run runs.Summary) string { return fmt.Sprintf(`a[href$="/jobs/%d"]`, run.JobID) }

// The page's Retry reopens a failed run.
func TestRiverUIRetry(t *testing.T) {
	p := newPlant(t)
	b := newBrowser(t)
	p.fake.Script("flaky", sandboxtest.Proc{Exit: 3}, sandboxtest.Proc{})
	run := p.await(p.submit(step("flaky")).ID, runs.Failed, "discarded")
	b.open(p.job(run))
	b.read("command_failed: ")
	b.press("Retry")
	run = p.await(run.ID, runs.Succeeded, "completed")
	b.open(p.jobsIn("Completed"))
	b.see(linkTo(run))
}

// The page's Cancel ends a running run, once its process has been stopped.
func TestRiverUICancel(t *testing.T) {
	p := newPlant(t)
	b := newBrowser(t)
	p.fake.Script("hang", sandboxtest.Proc{Hang: true})
	run := p.await(p.submit(step("hang")).ID, runs.Running, "running")
	b.open(p.job(run))
	b.read("State Running")
	b.press("Cancel")
	p.await(run.ID, runs.Cancelled, "cancelled")
	b.read("State Cancelled")
	if len(p.fake.Calls(sandboxtest.Stop)) == 0 {
		t.Error("the process was not stopped")
	}
}
