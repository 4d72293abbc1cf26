package local_test

import (
	"testing"
	"time"

	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

// Shells differ in what they fork for a command line, and all of it has to end.
func TestStopEveryShape(t *testing.T) {
	shapes := []string{
		"sleep 300",
		"sleep 300; true",
		"(sleep 300)",
		"sleep 300 | cat",
		"sleep 300 & wait",
		"setsid -w sleep 300",
		"setsid -f sleep 300; sleep 300",
		"nohup sleep 300 >/dev/null 2>&1 & sleep 300",
		"env -i sleep 300",
		"env -i setsid sleep 300 & wait",
	}
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		p := open(t, root, mode)
		for _, shell := range []string{"dash", "bash"} {
			look(t, shell)
			for _, shape := range shapes {
				t.Run(shell+" "+shape, func(t *testing.T) {
					t.Parallel()
					conn, host := dialHost(t, p, sandbox.HostSpec{Key: sandbox.Key(t.Name()), RunID: "run"})
					start(t, conn, 1, sandbox.Command{Argv: []string{shell, "-c", "echo ready; " + shape}})
					printed(t, conn, 1)
					began := time.Now()
					if err := conn.Stop(t.Context(), launch(1), time.Minute); err != nil {
						t.Fatal("stop:", err)
					}
					if took := time.Since(began); took > 20*time.Second {
						t.Errorf("TERM did not end it: it took %s", took)
					}
					if left, err := local.Left(root + "/" + host.ID); left > 0 || err != nil {
						t.Errorf("%d processes are left, %v", left, err)
					}
					if _, exit, err := follow(t, conn, 1); exit.Success() || err != nil {
						t.Errorf("%+v, %v", exit, err)
					}
				})
			}
		}
	})
}
