package docker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"executor/internal/sandbox"
)

// A daemon that is killed in the middle of a step, and comes back, costs nothing
// but time: with live-restore its containers go on without it.
func TestDaemonKilled(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "executor-dockerd-") // short, for its sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	ci := func(action string, options ...string) string {
		out, err := exec.CommandContext(context.Background(), "../../../.ci/dockerd", append([]string{action, dir}, options...)...).Output()
		if err != nil {
			t.Fatalf("dockerd %s: %v", action, err)
		}
		return strings.TrimSpace(string(out))
	}
	host := ci("start", "--live-restore")
	t.Cleanup(func() { ci("stop") })
	if err := buildImage(host); err != nil {
		t.Fatal(err)
	}
	p := open(t, func(c *Config) { c.Host = host })
	_, conn := create(t, p)
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	script := "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 7"
	if _, err := conn.Start(t.Context(), launch, shell(script)); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	killed := false
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := conn.Follow(ctx, launch, sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
		out.Write(data)
		if !killed {
			killed = true
			signalDaemon(t, dir, syscall.SIGKILL)
			go func() {
				time.Sleep(500 * time.Millisecond) // an outage, and no race
				ci("start", "--live-restore")
			}()
		}
		return nil
	})
	if err != nil || exit.Code != 7 {
		t.Fatalf("%+v, %v", exit, err)
	}
	var want strings.Builder
	for i := range 400 {
		want.WriteString(strconv.Itoa(i) + "\n")
	}
	if out.String() != want.String() {
		t.Errorf("%d bytes, want %d, or other ones", out.Len(), want.Len())
	}
}

func signalDaemon(t *testing.T, dir string, sig syscall.Signal) {
	t.Helper()
	content, err := os.ReadFile(dir + "/dockerd.pid")
	pid, malformed := strconv.Atoi(strings.TrimSpace(string(content)))
	if err := errors.Join(err, malformed); err != nil {
		t.Error(err)
		return
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Error(err)
	}
}
