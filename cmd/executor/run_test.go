package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"executor/internal/runs"
)

func TestRunEndsLikeTheRun(t *testing.T) {
	w := world(t)
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		stdout []string
	}{
		{"succeeds", []string{"run", "--", "sh", "-c", "echo hello; echo oops >&2"}, exitOK,
			[]string{"▶ sh", "sh │ hello", "sh ┃ oops", "✓ sh", "✓ succeeded"}},
		{"fails", []string{"run", "--", "sh", "-c", "exit 3"}, exitFailed,
			[]string{"✗ sh", "exit status 3", "✗ failed: command_failed"}},
		{"example that fails", []string{"run", "--follow", "-f", "../../examples/failing-test.json"}, exitFailed,
			[]string{"got 0, want 4", "✗ test", "✗ failed: command_failed"}},
		{"example in parallel", []string{"run", "--follow", "-f", "../../examples/parallel.json"}, exitOK,
			[]string{"▶ checks/count", "checks/stdin │ HELLO", "✓ checks/warn", `result: {"ok": true, "checks": 3}`}},
		{"its own time limit", []string{"run", "--timeout", "300ms", "--", "sleep", "60"}, exitFailed,
			[]string{"✗ failed: timeout"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := place{t, w.dir}
			r := p.must(tc.status, tc.args...)
			for _, want := range tc.stdout {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("no %q in:\n%s", want, r.stdout)
				}
			}
			if strings.Contains(r.stdout, "\x1b") || r.stderr != "" {
				t.Errorf("escapes though stdout is a pipe, or noise: %q %q", r.stdout, r.stderr)
			}
		})
	}
}

func TestRetriesAreShown(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	spec := `{"sandbox":"kept","retry":{"include":["command_failed"],"delays":["100ms"]},
		"steps":[{"name":"flaky","shell":"[ -e seen ] || { touch seen; exit 1; }"}]}`
	r := p.runIn(spec, nil, "run", "-f", "-", "--follow")
	r.want(t, exitOK)
	want := []string{"▶ flaky\n", "✗ flaky", "· backing off, goes on at", "▶ flaky (try 2)", "✓ flaky", "✓ succeeded"}
	rest := r.stdout
	for _, w := range want {
		_, after, found := strings.Cut(rest, w)
		if !found {
			t.Fatalf("no %q, in this order, in:\n%s", w, r.stdout)
		}
		rest = after
	}
}

func TestCancelledRun(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	follow := p.start(nil, "run", "--", "sleep", "600")
	id := strings.Fields(follow.await("run "))[1]
	follow.await("▶ sleep")
	if r := p.must(exitOK, "runs", "cancel", id, "--wait"); !strings.Contains(r.stdout, "cancelled") {
		t.Errorf("cancel says %q", r.stdout)
	}
	if status := follow.wait(); status != exitCancelled {
		t.Errorf("the follower ends with %d, want %d", status, exitCancelled)
	}
	p.must(exitCancelled, "runs", "show", id, "--exit-status")
	p.must(exitCancelled, "runs", "logs", id, "--follow")
}

func TestInterruptedFollowLeavesTheRun(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	follow := p.start(nil, "run", "--", "sleep", "600")
	id := strings.Fields(follow.await("run "))[1]
	follow.await("▶ sleep")
	if status := follow.end(syscall.SIGINT); status != exitUnfinished {
		t.Errorf("exit status %d, want %d", status, exitUnfinished)
	}
	if !strings.Contains(follow.stderr.String(), "the run goes on") {
		t.Errorf("stderr: %q", follow.stderr)
	}
	p.must(exitUnfinished, "runs", "show", id, "--exit-status")
	p.must(exitOK, "runs", "cancel", id, "--wait")
}

func TestRetry(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	r := p.must(exitFailed, "run", "--", "sh", "-c", "echo once more; exit 1")
	id := strings.Fields(r.stdout)[1]
	again := p.must(exitFailed, "runs", "retry", id[:13], "--follow")
	if n := strings.Count(again.stdout, "once more"); n != 1 {
		t.Errorf("output of the former round is shown again:\n%s", again.stdout)
	}
	if n := strings.Count(p.must(exitOK, "runs", "logs", id).stdout, "once more"); n != 2 {
		t.Errorf("logs show %d lines, want 2", n)
	}
	ok := strings.Fields(p.must(exitOK, "run", "--", "true").stdout)[1]
	if r := p.must(exitUsage, "runs", "retry", ok); !strings.Contains(r.stderr, "only a failed or cancelled run") {
		t.Errorf("stderr: %q", r.stderr)
	}
}

func TestRefusals(t *testing.T) {
	w := world(t)
	for _, tc := range []struct {
		name, stdin string
		args        []string
		status      int
		stderr      []string
	}{
		{"spec", `{"steps":[{"name":"a","shell":"true","timeout":"soon"}]}`, []string{"run", "-f", "-"}, exitUsage, []string{"standard input", "steps[0].timeout", `"soon"`}},
		{"every problem", `{"steps":[{"name":"a"},{"name":"a","shell":"true"}]}`, []string{"run", "-f", "-"}, exitUsage, []string{"\n  steps[0] ", "\n  steps[1].name "}},
		{"no file", "", []string{"run", "-f", "missing.json"}, exitUsage, []string{"missing.json"}},
		{"nothing", "", []string{"run"}, exitUsage, []string{"-f FILE or -- COMMAND"}},
		{"flag", "", []string{"run", "--nonsense"}, exitUsage, []string{"--nonsense", "executor run --help"}},
		{"command", "", []string{"nonsense"}, exitUsage, []string{"nonsense"}},
		{"id", "", []string{"runs", "show", "00000000"}, exitUsage, []string{"no such run"}},
		{"no id", "", []string{"runs", "show", "x\x1b[31m"}, exitUsage, []string{`x\x1b[31m: no such run`}},
		{"code", "", []string{"runs", "list", "--code", "oops"}, exitUsage, []string{"executor codes"}},
		{"listen", "", []string{"dev", "--listen", "0.0.0.0:1"}, exitUsage, []string{"EXECUTOR_LISTEN", "loopback"}},
		{"queue", "", []string{"dev", "--queues", "a b"}, exitUsage, []string{"--queues", `"a b"`}},
		{"workers", "", []string{"serve", "--workers", "0"}, exitUsage, []string{"--workers", "got 0"}},
		{"schema", "", []string{"runs", "list", "--schema", "No"}, exitUsage, []string{"--schema", "lower-case"}},
		{"variable", "", []string{"run", "-e", "NOT_SET", "--", "true"}, exitUsage, []string{"--env NOT_SET"}},
		{"no url", "", []string{"serve"}, exitUsage, []string{"DATABASE_URL", "executor dev"}},
		{"no Postgres", "", []string{"runs", "list", "--database-url", "postgres://127.0.0.1:1/x"}, exitTrouble, []string{"cannot be reached"}},
		{"no private Postgres", "", []string{"runs", "list", "--data-dir", filepath.Join(os.TempDir(), "no-such-data")}, exitTrouble, []string{"DATABASE_URL", "executor dev", "no-such-data"}},
		{"not migrated", "", []string{"runs", "list", "--schema", "absent"}, exitTrouble, []string{"executor migrate up"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := place{t, w.dir}
			r := p.runIn(tc.stdin, nil, tc.args...)
			r.want(t, tc.status)
			for _, want := range tc.stderr {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("no %q in: %s", want, r.stderr)
				}
			}
			if r.stdout != "" {
				t.Errorf("stdout: %q", r.stdout)
			}
		})
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	enqueue := func(status int, args ...string) result {
		return p.must(status, append([]string{"run", "--no-follow", "--idempotency-key", t.Name()}, args...)...)
	}
	first := enqueue(exitOK, "--", "true")
	if again := enqueue(exitOK, "--", "true"); again.stdout != first.stdout || first.stdout == "" {
		t.Errorf("two ids for one key: %q, %q", first.stdout, again.stdout)
	}
	if r := enqueue(exitUsage, "--", "false"); !strings.Contains(r.stderr, "another spec") {
		t.Errorf("stderr: %q", r.stderr)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	r := p.runIn("", []string{"TOKEN=verysecret"}, "run", "-e", "TOKEN", "-e", "PASSWORD=alsosecret", "--", "sh", "-c", `test "${#TOKEN}/${#PASSWORD}" = 10/10`)
	r.want(t, exitOK)
	id := strings.Fields(r.stdout)[1]
	for _, args := range [][]string{{"runs", "show", id}, {"runs", "show", id, "--json"}, {"runs", "list", "--json"}, {"runs", "logs", id, "--follow", "--json"}} {
		if out := p.must(exitOK, args...); strings.Contains(out.stdout+out.stderr, "alsosecret") || strings.Contains(out.stdout, "verysecret") {
			t.Errorf("%v shows a secret", args)
		}
	}
}

func TestExamplesAreValid(t *testing.T) {
	files, _ := filepath.Glob("../../examples/*.json")
	if len(files) < 4 {
		t.Fatalf("found %v", files)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := runs.ParseSpec(data); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if !json.Valid(data) {
			t.Errorf("%s is not JSON", file)
		}
	}
}
