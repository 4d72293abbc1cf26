package docker

import (
	"context"
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
	d := startDaemon(t, "--live-restore")
	p := open(t, d.at)
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
			d.signal(syscall.SIGKILL)
			go func() {
				time.Sleep(500 * time.Millisecond) // an outage, and no race
				d.restart()
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
