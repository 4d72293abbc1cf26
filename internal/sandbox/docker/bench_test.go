package docker

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/sandbox"
)

// BenchmarkFirstCommand is the time from nothing to the end of a host's first
// command, in turns with what the user's own tool takes for the same:
// docker-ms and ours-ms are means, and ratio is ours to docker's.
func BenchmarkFirstCommand(b *testing.B) {
	p, err := New(Config{Host: daemonHost(), Installation: "bench", Image: testImage, Pull: PullNever, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	if _, err := p.List(b.Context()); err != nil {
		b.Fatal(err)
	}
	var theirs, ours time.Duration
	for b.Loop() {
		began := time.Now()
		run := exec.Command("docker", "--host", daemonHost(), "run", "--init", "--name", "executor-bench", "--network", "none",
			"--cap-drop", "ALL", "--security-opt", "no-new-privileges", testImage, "true")
		if out, err := run.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		theirs += time.Since(began)
		if out, err := exec.Command("docker", "--host", daemonHost(), "rm", "executor-bench").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}

		began = time.Now()
		host, err := p.Create(b.Context(), sandbox.HostSpec{Key: "bench", RunID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		conn, err := p.Dial(b.Context(), host)
		if err == nil {
			err = conn.Prepare(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		exit, err := conn.Exec(b.Context(), sandbox.Command{Argv: []string{"true"}}, sandbox.Stdio{})
		if err != nil || !exit.Success() {
			b.Fatal(exit, err)
		}
		ours += time.Since(began)
		if err := p.Delete(context.Background(), host.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(theirs.Milliseconds())/float64(b.N), "docker-ms")
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "ours-ms")
	b.ReportMetric(float64(ours)/float64(theirs), "ratio")
}
