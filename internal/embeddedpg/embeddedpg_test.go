package embeddedpg

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func TestServerIsPrivateAndKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := newHome(t)
	s := start(t, config(t, dir))
	equal(t, "joined", s.Joined(), false)
	equal(t, "dir", s.Dir(), dir)

	for sql, want := range map[string]string{
		"SHOW listen_addresses":     "",
		"SHOW server_encoding":      "UTF8",
		"SHOW fsync":                "on",
		"SHOW max_connections":      "200",
		"SHOW TimeZone":             "UTC",
		"SELECT current_database()": "executor",
		"SELECT datcollate FROM pg_database WHERE datname = current_database()": "C",
		"SELECT DISTINCT auth_method FROM pg_hba_file_rules":                    "peer",
	} {
		equal(t, sql, query(t, s.URL(), sql), want)
	}
	for name, want := range map[string]fs.FileMode{
		"data": 0o700, "run": 0o700, "server.log": 0o600, "server.lock": 0o600, "pg_ident.conf": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		check(t, err)
		equal(t, name, info.Mode().Perm(), want)
	}

	pool, err := pgxpool.New(t.Context(), s.URL())
	check(t, err)
	_, err = pool.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'Käse' AS what")
	check(t, err)
	pool.Close()
	equal(t, "psql", psql(t, s.URL(), "SELECT what FROM kept"), "Käse")

	stop(t, s)
	stop(t, s)
	equal(t, "running", running(t, dir), false)
	if _, err := tryQuery(s.URL(), "SELECT 1"); err == nil {
		t.Error("the server answers after Stop")
	}

	s = start(t, config(t, dir))
	equal(t, "joined", s.Joined(), false)
	equal(t, "after a restart", query(t, s.URL(), "SELECT what FROM kept"), "Käse")
}

// A home's path may be longer than a socket's may, and hold what lists, globs, URLs and configuration files split.
func TestAnyPathWillDo(t *testing.T) {
	t.Parallel()
	for name, below := range map[string]string{
		"long":       strings.Repeat("d", 70),
		"longer":     strings.Repeat("d", 100) + "/" + strings.Repeat("e", 100),
		"characters": `a b,c%2Fd"e'f[g]*?#&=ü\h`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, filepath.Join(newHome(t), below))
			s := start(t, cfg)
			socketDir := s.home.socketDir()
			t.Cleanup(func() { check(t, os.Remove(socketDir)) })
			info, err := os.Stat(socketDir)
			check(t, err)
			equal(t, "mode of "+socketDir, info.Mode().Perm(), 0o700)
			equal(t, "psql", psql(t, s.URL(), "SELECT 1"), "1")

			joined := start(t, cfg)
			equal(t, "joined", joined.Joined(), true)
			stop(t, joined)
			stop(t, s)
		})
	}
}

// In /tmp somebody else may have made the directory first, or have opened it.
func TestSocketDirectoryThatIsNotSafeIsRefused(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	long := filepath.Join(filepath.Dir(dir), strings.Repeat("d", 90))
	check(t, os.Rename(dir, long))
	as, err := accountFor(long)
	check(t, err)
	squatted := home{dir: long, as: as}.socketDir()
	check(t, os.Mkdir(squatted, 0o700))
	t.Cleanup(func() { check(t, os.Remove(squatted)) })

	if as.borrowed {
		_, err = Start(t.Context(), config(t, long))
		wantError(t, err, squatted, "not safe")
	}
	check(t, as.own(squatted))
	check(t, os.Chmod(squatted, 0o750))
	_, err = Start(t.Context(), config(t, long))
	wantError(t, err, squatted, "not safe")
	equal(t, "running", running(t, long), false)

	check(t, os.Chmod(squatted, 0o700))
	stop(t, start(t, config(t, long)))
}

func TestDirectoryWithOtherFilesIsRefused(t *testing.T) {
	t.Parallel()
	dir := newHome(t)
	check(t, os.Mkdir(dir, 0o755))
	check(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644))
	_, err := Start(t.Context(), config(t, dir))
	wantError(t, err, dir, "other files")
	info, err := os.Stat(dir)
	check(t, err)
	equal(t, "mode", info.Mode().Perm(), 0o755)
}

func TestStartFailsWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	appendFile(t, filepath.Join(dir, "data", "postgresql.auto.conf"), "shared_preload_libraries = 'no_such_thing'\n")

	_, err := Start(t.Context(), config(t, dir))
	wantError(t, err, dir, "server.log", `could not access file "no_such_thing"`)
	if strings.Contains(err.Error(), "ready to accept connections") {
		t.Errorf("the error quotes an earlier server: %v", err)
	}
	equal(t, "running", running(t, dir), false)
}

func TestServerLogDoesNotGrowForEver(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	name := filepath.Join(dir, "server.log")
	check(t, os.Truncate(name, logLimit+1))
	start(t, config(t, dir))
	old, err := os.Stat(name + ".old")
	check(t, err)
	equal(t, "old size", old.Size(), logLimit+1)
	text, err := os.ReadFile(name)
	check(t, err)
	if !strings.Contains(string(text), "ready to accept connections") {
		t.Errorf("the new log: %s", text)
	}
}

// A fast shutdown waits for every child of the server; one that is stopped would keep it for ever.
func TestStopEndsAServerThatDoesNotShutDown(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	s := start(t, config(t, dir))
	checkpointer := query(t, s.URL(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
	check(t, exec.Command("kill", "-STOP", checkpointer).Run())

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	check(t, s.Stop(ctx))
	equal(t, "running", running(t, dir), false)

	s = start(t, config(t, dir))
	equal(t, "after recovery", query(t, s.URL(), "SELECT n FROM kept"), "1")
}

func psql(t *testing.T, url, sql string) string {
	t.Helper()
	cmd := exec.Command("psql", "-X", "-A", "-t", "-c", sql, url)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	check(t, err)
	return strings.TrimSpace(string(out))
}

// appendFile keeps the file its owner's.
func appendFile(t *testing.T, name, text string) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = file.WriteString(text)
	check(t, err)
	check(t, file.Close())
}
