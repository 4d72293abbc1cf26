package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

// The supervisor dies of SIGKILL, as nothing of ours does.
func TestSupervisorKilled(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, open(t, root, mode), spec)
		start(t, conn, 1, shell("echo ready; setsid sleep 300 & sleep 300"))
		printed(t, conn, 1)
		pidFile, err := os.ReadFile(filepath.Join(root, host.ID, "run", launch(1).Name(), sandbox.RunPID))
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		var start uint64
		var boot string
		if _, err := fmt.Sscan(string(pidFile), &pid, &start, &boot); err != nil {
			t.Fatalf("pid file %q: %v", pidFile, err)
		}
		if now, _ := os.ReadFile("/proc/sys/kernel/random/boot_id"); strings.TrimSpace(string(now)) != boot {
			t.Errorf("boot id %q, want %q", boot, now)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if out, _, err := follow(t, conn, 1); code(err) != "sandbox_lost" || out != "ready\n" {
			t.Errorf("%q, %v", out, err)
		}
		if err := conn.Stop(t.Context(), launch(1), 0); err != nil {
			t.Error("stop:", err)
		}
		if left, err := local.Left(root); left > 0 || err != nil {
			t.Errorf("%d processes are left, %v", left, err)
		}
	})
}

// An executor died between making the run directory and the supervisor's pid:
// nothing was started, and the next Start starts it.
func TestStartDiedHalfWay(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, open(t, root, mode), spec)
		dir := filepath.Join(root, host.ID, "run", launch(1).Name())
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"lock", sandbox.RunStdin, sandbox.RunStdout, sandbox.RunStderr} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := follow(t, conn, 1); code(err) != "sandbox_lost" {
			t.Errorf("follow: %v", err)
		}
		if p := start(t, conn, 1, shell("echo x")); p.Adopted {
			t.Error("adopted what never was")
		}
		if out, exit, err := follow(t, conn, 1); out != "x\n" || !exit.Success() || err != nil {
			t.Errorf("%q, %+v, %v", out, exit, err)
		}
	})
}

// After a reboot there is a pid and no supervisor. The pid may be anybody's.
func TestAfterReboot(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, open(t, root, mode), spec)
		start(t, conn, 1, shell("true"))
		if _, _, err := follow(t, conn, 1); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, host.ID, "run", launch(1).Name())
		if err := os.Remove(filepath.Join(dir, sandbox.RunExit)); err != nil {
			t.Fatal(err)
		}
		pid := fmt.Sprintf("%d 1 another-boot\n", os.Getpid())
		if err := os.WriteFile(filepath.Join(dir, sandbox.RunPID), []byte(pid), 0o600); err != nil {
			t.Fatal(err)
		}
		if p := start(t, conn, 1, shell("true")); !p.Adopted {
			t.Error("started again")
		}
		if _, _, err := follow(t, conn, 1); code(err) != "sandbox_lost" {
			t.Errorf("follow: %v", err)
		}
		if err := conn.Stop(t.Context(), launch(1), 0); err != nil {
			t.Error("stop:", err)
		}
	})
}

// What an executor that died has left of a creation or a deletion.
func TestHalfMadeHosts(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		p := open(t, root, mode)
		conn, host := dialHost(t, p, spec)
		start(t, conn, 1, shell("echo ready; sleep 300"))
		printed(t, conn, 1)
		old := filepath.Join(root, ".new-old")
		if err := os.MkdirAll(filepath.Join(old, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
		ago := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(old, ago, ago); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(root, host.ID), filepath.Join(root, ".deleted-"+host.ID)); err != nil {
			t.Fatal(err)
		}
		p = open(t, root, mode)
		if _, err := os.Stat(old); err == nil {
			t.Error("a creation that died is still there")
		}
		if _, err := p.Get(t.Context(), host.ID); code(err) != "sandbox_not_found" {
			t.Errorf("get: %v", err)
		}
		if hosts, err := p.List(t.Context()); err != nil || len(hosts) != 1 || hosts[0] != host {
			t.Errorf("listed: %+v, %v", hosts, err)
		}
		again, err := p.Create(t.Context(), spec)
		if err != nil || again.ID == host.ID || again.Key != host.Key {
			t.Errorf("created: %+v, %v", again, err)
		}
		// The late deletion of the first host leaves the second one alone.
		if err := p.Delete(t.Context(), host.ID); err != nil {
			t.Fatal(err)
		}
		if adopted, err := p.Create(t.Context(), spec); err != nil || adopted != again {
			t.Errorf("adopted: %+v, %v", adopted, err)
		}
		if err := p.Delete(t.Context(), again.ID); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
			t.Errorf("left: %v, %v", entries, err)
		}
	})
}
