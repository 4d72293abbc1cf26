package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// A pid file that does not name our server must not keep it from starting.
func TestStalePidFile(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	cfg := config(t, dir)
	s := start(t, cfg)
	pidFile := filepath.Join(dir, "data", "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	check(t, err)
	_, rest, _ := strings.Cut(string(text), "\n")
	as := s.home.as
	stop(t, s)

	sleep := as.command(t.Context(), cfg.Path, "/bin/sleep", "1000")
	check(t, sleep.Start())
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	dead := as.command(t.Context(), cfg.Path, "/bin/true")
	check(t, dead.Run())

	for name, content := range map[string]string{
		"another program": fmt.Sprintf("%d\n%s", sleep.Process.Pid, rest),
		"a dead process":  fmt.Sprintf("%d\n%s", dead.Process.Pid, rest),
		"nobody":          "",
		"one line":        fmt.Sprint(sleep.Process.Pid),
	} {
		check(t, os.WriteFile(pidFile, []byte(content), 0o600))
		check(t, as.own(pidFile))
		s, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		equal(t, name+": joined", s.Joined(), false)
		equal(t, name+": data", query(t, s.URL(), "SELECT n FROM kept"), "1")
		stop(t, s)
	}
	if sleep.ProcessState != nil {
		t.Error("the innocent program was stopped")
	}
}

// A server that somebody started by hand on our cluster is neither joined nor harmed.
func TestServerStartedByHandIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	cfg := config(t, dir)
	s := start(t, cfg)
	as, data, run := s.home.as, filepath.Join(dir, "data"), s.home.socketDir()
	stop(t, s)

	pg, err := findInstallation(t.Context(), cfg, s.home, 0)
	check(t, err)
	pgCtl := func(args ...string) {
		t.Helper()
		out, err := as.command(t.Context(), cfg.Path, pg.program("pg_ctl"), append(args, "-w", "-D", data, "-l", "/dev/null")...).CombinedOutput()
		if err != nil {
			t.Fatalf("pg_ctl %s: %v\n%s", args, err, out)
		}
	}
	pgCtl("start", "-o", "-c listen_addresses= -p 5433 -k "+run)
	pid := postmasterPID(t, dir)
	_, err = Start(t.Context(), cfg)
	wantError(t, err, fmt.Sprint(pid), "pg_ctl", data)
	equal(t, "pid", postmasterPID(t, dir), pid)
	pgCtl("stop")
	start(t, cfg)
}

// recovering makes the cluster recover from an archive whose next file does not come before the returned function
// has been called: until then the server answers every connection with SQLSTATE 57P03.
func recovering(t *testing.T, dir string) (finish func()) {
	t.Helper()
	as, err := accountFor(dir)
	check(t, err)
	arrived := filepath.Join(filepath.Dir(dir), "arrived")
	appendFile(t, filepath.Join(dir, "data", "postgresql.auto.conf"),
		"hot_standby = off\nrestore_command = 'until test -e "+arrived+"; do sleep 0.05; done; false'\n")
	signal := filepath.Join(dir, "data", "recovery.signal")
	check(t, os.WriteFile(signal, nil, 0o600))
	check(t, as.own(signal))
	return func() { check(t, os.WriteFile(arrived, nil, 0o644)) }
}

// onWait calls fn when Start logs that it waits.
type onWait func()

func (fn onWait) Run(_ *zerolog.Event, _ zerolog.Level, message string) {
	if strings.Contains(message, "waiting for it") {
		fn()
	}
}

func TestServerInRecoveryIsWaitedFor(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	finish := recovering(t, dir)
	cfg := config(t, dir)
	waited := false
	cfg.Log = cfg.Log.Hook(onWait(func() { waited = true; finish() }))

	s := start(t, cfg)
	equal(t, "waited", waited, true)
	equal(t, "data", query(t, s.URL(), "SELECT n FROM kept"), "1")
}

func TestStartThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	recovering(t, dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg := config(t, dir)
	reason := errors.New("the user has changed his mind")
	cfg.Log = cfg.Log.Hook(onWait(func() { cancel(reason) }))

	_, err := Start(ctx, cfg)
	if !errors.Is(err, reason) {
		t.Errorf("the error does not wrap the cause: %v", err)
	}
	wantError(t, err, "57P03", "server.log says", "LOG:")
	equal(t, "running", running(t, dir), false)
}

// An initdb that dies half-way leaves no cluster behind, and the next start makes one.
func TestHalfACluster(t *testing.T) {
	t.Parallel()
	dir := newHome(t)
	cfg := config(t, dir)
	cfg.BinDir = filepath.Join(filepath.Dir(dir), "bin")
	check(t, os.Mkdir(cfg.BinDir, 0o755))
	for _, program := range programs {
		real, err := exec.LookPath(program)
		check(t, err)
		script(t, filepath.Join(cfg.BinDir, program), `case "$1" in
--pgdata=*) echo 15 > "${1#--pgdata=}/PG_VERSION"; echo "disk on fire" >&2; kill -9 $$;;
esac
exec `+real+` "$@"`)
	}
	_, err := Start(t.Context(), cfg)
	wantError(t, err, "initdb", "killed", "disk on fire")

	// As if this process had been killed together with it.
	left := filepath.Join(dir, "init-left")
	check(t, os.Mkdir(left, 0o700))
	cfg.BinDir = ""
	s := start(t, cfg)
	equal(t, "joined", s.Joined(), false)
	if _, err := os.Stat(left); err == nil {
		t.Errorf("%s is still there", left)
	}
}

func TestClusterOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	name := filepath.Join(dir, "data", "PG_VERSION")
	real, err := os.ReadFile(name)
	check(t, err)
	check(t, os.WriteFile(name, []byte("13\n"), 0o600))
	_, err = Start(t.Context(), config(t, dir))
	wantError(t, err, filepath.Join(dir, "data"), "made by PostgreSQL 13", "is PostgreSQL "+strings.TrimSpace(string(real)), "install PostgreSQL 13")
	check(t, os.WriteFile(name, real, 0o600))
	start(t, config(t, dir))
}

func TestDataThatIsNoCluster(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	check(t, os.Remove(filepath.Join(dir, "data", "PG_VERSION")))
	_, err := Start(t.Context(), config(t, dir))
	wantError(t, err, filepath.Join(dir, "data"), "not a Postgres cluster")
}

// script writes a program that every account can run.
func script(t *testing.T, name, text string) {
	t.Helper()
	check(t, os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	check(t, os.Chmod(name, 0o755))
}
