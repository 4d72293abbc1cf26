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

// A tree that is another one at each look: its only process forks and ends, for
// ever, in a session of its own.
func TestStopWhatRunsAway(t *testing.T) {
	t.Parallel()
	const away = `export GO='trap "" TERM; setsid sh -c "$GO" & exit'; setsid sh -c "$GO" & echo ready; sleep 300; sleep 300`
	for name, p := range map[string]func(t *testing.T, root string) *local.Provider{
		"in a PID namespace": func(t *testing.T, root string) *local.Provider { return open(t, root, local.Bwrap) },
		"in a cgroup": func(t *testing.T, root string) *local.Provider {
			p, _ := openLimited(t, root, local.Plain, local.Limits{PIDs: 1000})
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			conn := dial(t, p(t, root))
			start(t, conn, 1, shell("exec 9>held; flock -s 9; "+away))
			printed(t, conn, 1)
			if err := conn.Stop(t.Context(), launch(1), 50*time.Millisecond); err != nil {
				t.Fatal("stop:", err)
			}
			sh(t, conn, "flock -n held true")
		})
	}
}
