package docker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
	"executor/internal/sandbox/sandboxtest"
)

// Everything that can be closed is, and another user works in it.
func TestConformanceConfined(t *testing.T) {
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open: func(t *testing.T) sandbox.Provider {
			return open(t, func(cfg *Config) {
				cfg.Installation, cfg.User, cfg.ReadOnlyRoot = "test-confined", "agent", true
				cfg.Memory, cfg.PIDs, cfg.CPUs = 512<<20, 500, 1.5
			})
		},
		Processes: inContainer,
		Left:      func(t *testing.T) []string { return labelled(t, "test-confined") },
		Light:     true,
	})
}

func TestConfinement(t *testing.T) {
	t.Parallel()
	_, conn := create(t, open(t, func(c *Config) { c.User, c.ReadOnlyRoot = "agent", true }))
	for script, want := range map[string]string{
		"id -u; id -g":                         "1000\n1000\n",
		"touch /x 2>/dev/null || echo refused": "refused\n",
		"for d in /work /tmp $HOME; do touch $d/x && echo yes; done":                                               "yes\nyes\nyes\n",
		"while read name value; do case $name in NoNewPrivs:|CapEff:) echo $value;; esac; done </proc/self/status": "0000000000000000\n1\n",
		"ls /sys/class/net":    "lo\n",
		"env | grep -c CANARY": "0\n",
	} {
		if _, out := sh(t, conn, script); out != want {
			t.Errorf("%s: %q, want %q", script, out, want)
		}
	}
	_, conn = create(t, open(t, func(c *Config) { c.Installation = "test-root" }))
	// CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID
	if _, out := sh(t, conn, "grep CapBnd /proc/self/status"); !strings.HasSuffix(out, "00000000000000eb\n") {
		t.Errorf("root has %s", out)
	}
}

// grow makes a process take more memory than there is.
const grow = "tail /dev/zero"

func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.Memory = 64 << 20 })
	_, conn := create(t, p)
	killed := sandbox.Exit{Code: 137, Signal: "SIGKILL"}
	for i, test := range []struct {
		name, script string
		exit         sandbox.Exit
		kind         *faults.Kind
	}{
		{"itself", "exec " + grow, killed, faults.SandboxOOM},
		{"a child, whose status is its own", grow + "; exit $?", sandbox.Exit{Code: 137}, faults.SandboxOOM},
		{"a child, and it ends otherwise", grow + "; exit 3", sandbox.Exit{Code: 3}, nil},
		{"a child, and it goes on", grow + "; echo done", sandbox.Exit{}, nil},
		{"nobody, and it was killed", "kill -KILL $$", killed, nil},
		{"nobody, and it says so", "exit 137", sandbox.Exit{Code: 137}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			launch := sandbox.Launch{RunID: "run", Step: "step", N: i + 1}
			if _, err := conn.Start(t.Context(), launch, shell(test.script)); err != nil {
				t.Fatal(err)
			}
			exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, discard)
			check := func(how string) {
				if exit != test.exit || (err != nil) != (test.kind != nil) || test.kind != nil && !errors.Is(err, test.kind) {
					t.Errorf("%s: %+v, %v", how, exit, err)
				}
			}
			check("detached")
			exit, err = conn.Exec(t.Context(), shell(test.script), sandbox.Stdio{})
			check("attached")
		})
	}
}

// When the container's own init is killed for memory, the container says so.
func TestInitOutOfMemory(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.Memory = 64 << 20 })
	host, conn := create(t, p)
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	// Memory in files is nobody's: the killer goes on until init is dead.
	if _, err := conn.Start(t.Context(), launch, shell("echo 1000 >/proc/self/oom_score_adj; while :; do dd if=/dev/zero of=/dev/shm/$$ bs=1M count=63; done")); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, discard)
	if !errors.Is(err, faults.SandboxOOM) {
		t.Errorf("follow: %v", err)
	}
	_ = host
}

func TestProcessLimit(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.PIDs = 40 })
	host, conn := create(t, p)
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	// Beside init, its sh and sleep, supervisor, inner shell and the command; once
	// the helper that starts it is gone.
	if _, err := conn.Start(t.Context(), launch, shell("sleep 1; for i in $(seq 34); do sleep 300 & done; wait")); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close() // it would go on to follow
	conn, err := p.Dial(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Looked at from outside: a helper would take the processes' places.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for c := (&container{provider: p, id: host.ID}); ; {
		pids, err := c.processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if pids.Current == pids.Limit {
			break
		}
	}
	if _, err := conn.Exec(ctx, shell("true"), sandbox.Stdio{}); !errors.Is(err, faults.SandboxCapacity) {
		t.Errorf("exec in a host full of processes: %v", err)
	}
}

// A full disk is said to be one, and can be worked on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	p := open(t)
	host, _ := create(t, p)
	// What a container has of a small disk is its shared memory.
	conn := remote.New(&container{provider: p, id: host.ID, patience: exitLimit}, remote.Config{Base: "/dev/shm/base"})
	if err := conn.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	running := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	if _, err := conn.Start(t.Context(), running, shell("dd if=/dev/zero of=big bs=1M; while [ ! -e go ]; do sleep 0.05; done; exit 7")); err != nil {
		t.Fatal(err)
	}
	for full := false; !full; {
		_, out := sh(t, conn, "df /dev/shm | grep -c 100%")
		full = out == "1\n"
	}
	if err := conn.Upload(t.Context(), "file", 0o600, bytes.NewReader(make([]byte, 1<<20))); !errors.Is(err, faults.SandboxDiskFull) {
		t.Errorf("upload: %v", err)
	}
	_, err := conn.Start(t.Context(), sandbox.Launch{RunID: "run", Step: "step", N: 2}, sandbox.Command{Argv: []string{"cat"}, Stdin: make([]byte, 1<<20)})
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxDiskFull || f.Outcome != faults.NotStarted {
		t.Errorf("start: %v", err)
	}
	if exit, out := sh(t, conn, "ls -A; mkdir go; echo $?"); !exit.Success() || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("exec: %+v, %q", exit, out)
	}
	if exit, err := conn.Follow(t.Context(), running, sandbox.Offsets{}, discard); !errors.Is(err, faults.SandboxDiskFull) || exit.Code != 7 {
		t.Errorf("the end on a full disk: %+v, %v", exit, err)
	}
}

// What a command runs with stands in no list of processes, here or there.
func TestSecrets(t *testing.T) {
	t.Parallel()
	_, conn := create(t, open(t))
	secret := "canary-" + strings.Repeat("x", 20)
	watchArguments(t, secret)
	for n := range 10 {
		cmd := sandbox.Command{Argv: []string{"sh", "-c", `[ -n "$SECRET" ]; cat`}, Env: map[string]string{"SECRET": secret}, Stdin: []byte(secret)}
		if exit, err := conn.Exec(t.Context(), cmd, sandbox.Stdio{In: strings.NewReader(secret)}); err != nil || !exit.Success() {
			t.Error(exit, err)
		}
		launch := sandbox.Launch{RunID: "run", Step: "step", N: n + 1}
		if _, err := conn.Start(t.Context(), launch, cmd); err != nil {
			t.Error(err)
		}
		if exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, discard); err != nil || !exit.Success() {
			t.Error(exit, err)
		}
	}
}

// watchArguments fails the test if a secret is seen in a list of processes until
// its end; containers' are in it too.
func watchArguments(t *testing.T, secret string) {
	var seen sync.Map
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, line := range lines {
				if content, _ := os.ReadFile(line); bytes.Contains(content, []byte(secret)) {
					seen.Store(string(content), true)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		seen.Range(func(line, _ any) bool { t.Errorf("seen in %q", line); return true })
	})
}

func discard(sandbox.Stream, int64, []byte) error { return nil }
