package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

// waiting is a run whose process waits until it is told to go on.
const waiting = `{"name":"waiting","steps":[{"name":"wait","shell":"echo begun; until [ -e go ]; do sleep 0.05; done; echo done"}]}`

// letGo tells every waiting process of the place to go on.
func (p place) letGo() {
	p.t.Helper()
	dirs, _ := filepath.Glob(filepath.Join(p.dir, "hosts", "*", "work"))
	if len(dirs) == 0 {
		p.t.Fatal("no process waits")
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}

// begun enqueues a waiting run and returns when its process has printed.
func (p place) begun() (id string, follow *process) {
	p.t.Helper()
	r := p.runIn(waiting, nil, "run", "-f", "-")
	r.want(p.t, exitOK)
	id = strings.TrimSpace(r.stdout)
	follow = p.start(nil, "runs", "logs", id, "--follow")
	follow.await("│ begun")
	return id, follow
}

// once asserts that the run needed one attempt and printed everything once.
func (p place) once(id string) {
	p.t.Helper()
	var d runs.Detail
	if err := json.Unmarshal([]byte(p.must(exitOK, "runs", "show", id, "--json").stdout), &d); err != nil {
		p.t.Fatal(err)
	}
	if d.Status != runs.Succeeded || d.Attempts != 1 {
		p.t.Errorf("%s after %d attempts", d.Status, d.Attempts)
	}
	if r := p.must(exitOK, "runs", "logs", id, "--raw"); r.stdout != "begun\ndone\n" {
		p.t.Errorf("its output is %q", r.stdout)
	}
}

// cutConnections ends every connection of ours to the private Postgres.
func (p place) cutConnections() {
	p.t.Helper()
	url, err := os.ReadFile(filepath.Join(p.dir, urlFile))
	if err != nil {
		p.t.Fatal(err)
	}
	pool := runstest.Pool(p.t, strings.TrimSpace(string(url)))
	if _, err := pool.Exec(background(p.t), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'executor'`); err != nil {
		p.t.Fatal(err)
	}
	pool.Close()
}

func TestTerminatedDevLetsGoAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.dev()
	id, follow := p.begun()
	p.cutConnections()
	if status := first.end(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d; %s", status, first.stderr)
	}
	p.letGo()
	second := p.dev()
	if status := follow.wait(); status != exitOK {
		t.Errorf("the follower ends with %d", status)
	}
	p.once(id)
	if status := second.end(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d; %s", status, second.stderr)
	}
	if strings.Contains(p.must(exitOK, "runs", "list").stdout, "running") { // starts Postgres by itself
		t.Error("a run is left")
	}
}

func TestKilledDevStartsAgainAndGoesOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first := p.dev()
	id, follow := p.begun()
	first.end(syscall.SIGKILL)
	p.letGo()
	second := p.dev()
	if status := follow.wait(); status != exitOK {
		t.Errorf("the follower ends with %d", status)
	}
	p.once(id)
	if status := second.end(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d; %s", status, second.stderr)
	}
}

func TestTwoDevsOnTheSameData(t *testing.T) {
	t.Parallel()
	w := world(t)
	p := place{t, w.dir}
	second := p.start(nil, "dev", "--listen", "127.0.0.1:0")
	t.Cleanup(func() { second.end(syscall.SIGTERM) })
	second.await("is up")
	second.await("joined")
	p.must(exitOK, "run", "--", "true")
	// demo joins, too, and ends as its run does.
	if r := p.must(exitFailed, "demo", "../../examples/failing-test.json", "--listen", "127.0.0.1:0"); !strings.Contains(r.stdout, "joined") {
		t.Errorf("demo says:\n%s", r.stdout)
	}
	if status := second.end(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d; %s", status, second.stderr)
	}
	p.must(exitOK, "run", "--", "true")
}

func TestServe(t *testing.T) {
	t.Parallel()
	w := world(t)
	url, err := os.ReadFile(filepath.Join(w.dir, urlFile))
	if err != nil {
		t.Fatal(err)
	}
	// A data directory and a schema of its own, in a database that is named.
	p := place{t, t.TempDir()}
	env := []string{"DATABASE_URL=" + strings.TrimSpace(string(url)), "EXECUTOR_SCHEMA=of_serve"}
	ask := func(status int, args ...string) result {
		t.Helper()
		r := p.runIn("", env, args...)
		r.want(t, status)
		return r
	}
	if r := ask(exitTrouble, "serve", "--listen", "127.0.0.1:0"); !strings.Contains(r.stderr, "executor migrate up") {
		t.Errorf("serve on an empty schema says %q", r.stderr)
	}
	ask(exitFailed, "migrate", "status")
	ask(exitOK, "migrate", "up")
	ask(exitOK, "migrate", "up")
	ask(exitOK, "migrate", "status")

	free, err := listen(background(t), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	_ = free.Close()
	// Postgres comes up later than it does.
	_, socket, _ := strings.Cut(string(url), "host=")
	socket, _, _ = strings.Cut(socket, "&")
	later := filepath.Join(p.dir, "later")
	serve := p.start([]string{strings.Replace(env[0], socket, later, 1), env[1]}, "serve", "--listen", addr)
	t.Cleanup(func() { serve.end(syscall.SIGTERM) })
	for ctx := background(t); !strings.Contains(serve.stderr.String(), "waiting for Postgres"); {
		if pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("it does not wait: %s", serve.stderr)
		}
	}
	if err := os.Symlink(socket, later); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, "http://"+addr)
	ask(exitOK, "run", "--", "true")
	if r := ask(exitOK, "runs", "list"); strings.Count(r.stdout, "succeeded") != 1 {
		t.Errorf("list says:\n%s", r.stdout)
	}
	resp, err := http.Get("http://" + addr + "/riverui/")
	if err == nil {
		resp.Body.Close()
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("River UI: %v %v", resp, err)
	}
	if status := serve.end(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d; %s", status, serve.stderr)
	}
	for line := range strings.Lines(serve.stderr.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is not JSON: %q", line)
		}
	}
}

// awaitReady polls /readyz: nothing tells of it.
func awaitReady(t *testing.T, base string) {
	t.Helper()
	ctx := background(t)
	for {
		resp, err := http.Get(base + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("not ready within %s: %v", limit, err)
		}
	}
}
