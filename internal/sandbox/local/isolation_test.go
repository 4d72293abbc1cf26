package local_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

func TestBwrapIsolates(t *testing.T) {
	t.Parallel()
	root, secret := t.TempDir(), t.TempDir()
	cfg := config(root, local.Bwrap)
	cfg.Hide = []string{secret, filepath.Join(secret, "none")}
	p, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, other := dialHost(t, p, sandbox.HostSpec{Key: "other", RunID: "other"})
	conn, host := dialHost(t, p, spec)
	open, _ := dialHost(t, p, sandbox.HostSpec{Key: "open", RunID: "open", Network: true})

	if got := sh(t, conn, "ls -A "+root); got != host.ID+"\n" {
		t.Errorf("of the root it sees %q, other is %s", got, other.ID)
	}
	if got := sh(t, conn, "ls -A "+filepath.Join(root, host.ID)); got != "home\nwork\n" {
		t.Errorf("of its host it sees %q", got)
	}
	if got := sh(t, conn, "ls -A /run "+secret+"; ls /proc | grep -c '^[0-9]'"); strings.Contains(got, "key") || strings.Contains(got, ".pid") {
		t.Errorf("it sees %q", got)
	}
	for _, dir := range []string{"/", "/etc", "/usr", "/var", root, filepath.Join(root, host.ID), filepath.Join(root, host.ID, "run"), "/sys"} {
		var errs bytes.Buffer
		exit, err := conn.Exec(t.Context(), shell("echo >"+dir+"/executor-test"), sandbox.Stdio{Err: &errs})
		if err != nil || exit.Success() {
			t.Errorf("it can write to %s", dir)
		}
	}
	sh(t, conn, "echo >$HOME/x; echo >$TMPDIR/x; echo >/tmp/y; echo >x; : </etc/passwd")
	if _, err := os.Stat(filepath.Join(root, host.ID, "tmp", "y")); err != nil {
		t.Errorf("/tmp is not the host's: %v", err)
	}
	status := sh(t, conn, "cat /proc/self/status")
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, line) {
			t.Errorf("%s is not so", line)
		}
	}
	interfaces := "grep -c : /proc/net/dev"
	if got := sh(t, conn, interfaces); got != "1\n" {
		t.Errorf("without a network it has %s interfaces", got)
	}
	dev, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sh(t, open, interfaces), fmt.Sprintln(bytes.Count(dev, []byte(":"))); got != want {
		t.Errorf("with the network it has %s interfaces, want %s", got, want)
	}
	if got := sh(t, conn, "kill -KILL -1; echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
}

func TestChoiceOfIsolation(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "bwrap")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho no user namespaces >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		mode        local.Mode
		bwrap, path string
		want        local.Mode // empty: unsupported
		why         string
	}{
		"auto":                 {local.Auto, "", os.Getenv("PATH"), local.Bwrap, ""},
		"empty":                {"", "", os.Getenv("PATH"), local.Bwrap, ""},
		"bwrap":                {local.Bwrap, "", os.Getenv("PATH"), local.Bwrap, ""},
		"plain":                {local.Plain, "", os.Getenv("PATH"), local.Plain, "the configuration says so"},
		"auto, not installed":  {local.Auto, "", t.TempDir(), local.Plain, "bwrap is not installed"},
		"auto, does not work":  {local.Auto, broken, "", local.Plain, "no user namespaces"},
		"bwrap, not installed": {local.Bwrap, "", "", "", ""},
		"bwrap, does not work": {local.Bwrap, broken, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			cfg := config(t.TempDir(), test.mode)
			cfg.Bwrap, cfg.Path, cfg.Log = test.bwrap, test.path, zerolog.New(&log)
			p, err := local.New(t.Context(), cfg)
			if test.want == "" {
				if code(err) != "sandbox_unsupported" {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := p.Isolation()
			if got.Mode != test.want || !strings.Contains(got.Why, test.why) || len(got.Open) == 0 {
				t.Errorf("got %+v", got)
			}
			if said := log.Len() > 0; said != (test.want == local.Plain) {
				t.Errorf("logged: %s", log.String())
			}
			if entries, _ := os.ReadDir(cfg.Root); len(entries) > 0 {
				t.Errorf("the probe left %v", entries)
			}
		})
	}
}

// Command lines can be read by everybody on the machine.
func TestSecretsAreInNoCommandLine(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn := dial(t, open(t, root, mode))
		const secret = "canary-5f1d"
		cmd := shell("echo ready; read x; sleep 300")
		cmd.Env, cmd.Stdin = map[string]string{"TOKEN": secret}, []byte(secret)
		start(t, conn, 1, cmd)
		printed(t, conn, 1)
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			if line, _ := os.ReadFile(file); bytes.Contains(line, []byte(secret)) {
				t.Errorf("%s: %q", file, line)
			}
		}
	})
}

// bubblewrap fails now and then on a machine whose mounts come and go. It had
// not begun the command, so that it is tried again.
func TestWrapperFailsAtFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wrapper, count, broken := filepath.Join(dir, "bwrap"), filepath.Join(dir, "count"), filepath.Join(dir, "broken")
	script := fmt.Sprintf(`#!/bin/sh
		echo >>%[1]s
		if [ -e %[2]s ] || [ $(( $(wc -l <%[1]s) %% 3 )) != 0 ]; then
			echo a mount went away >&2
			exit 1
		fi
		exec %[3]s "$@"`, count, broken, look(t, "bwrap"))
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := config(t.TempDir(), local.Bwrap)
	cfg.Bwrap = wrapper
	p, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal("the third try of the probe works:", err)
	}
	conn := dial(t, p)
	var out bytes.Buffer
	exit, err := conn.Exec(t.Context(), shell("cat; exit 4"), sandbox.Stdio{In: strings.NewReader("x"), Out: &out})
	if err != nil || exit.Code != 4 || out.String() != "x" {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
	start(t, conn, 1, shell("echo x; exit 137"))
	if out, exit, err := follow(t, conn, 1); err != nil || exit != (sandbox.Exit{Code: 137}) || out != "x\n" {
		t.Errorf("%q, %+v, %v", out, exit, err)
	}
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, execErr := conn.Exec(t.Context(), shell("true"), sandbox.Stdio{})
	start(t, conn, 2, shell("true"))
	_, _, followErr := follow(t, conn, 2)
	for _, err := range []error{execErr, followErr} {
		if code(err) != "sandbox_lost" || faults.Of(err).Outcome != faults.NotStarted || !strings.Contains(err.Error(), "a mount went away") {
			t.Errorf("got %v", err)
		}
	}
}

// An executor that is told to leave while it tries bwrap leaves at once, and
// nothing behind.
func TestCancelledWhileTryingBwrap(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*250*time.Microsecond)
		began := time.Now()
		_, _ = local.New(ctx, config(root, local.Bwrap)) // with some of them it works
		cancel()
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("it took %v", took)
		}
	}
	left := func() (left []string) {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range files {
			if line, _ := os.ReadFile(file); bytes.Contains(line, []byte(root)) {
				left = append(left, file)
			}
		}
		return left
	}
	for end := time.Now().Add(5 * time.Second); len(left()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left: %v", left())
		}
	}
}
