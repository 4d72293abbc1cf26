package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// userDir is set in the environment of a test binary that is to be another process using the server of that
// directory (see process); userMask may be set too, it is the umask of that process.
const (
	userDir  = "EMBEDDEDPG_TEST_DIR"
	userMask = "EMBEDDEDPG_TEST_UMASK"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(userDir); dir != "" {
		beUser(dir)
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if made != "" {
			code |= exitCode(os.RemoveAll(filepath.Dir(made)))
		}
		os.Exit(code)
	}))
}

// newHome returns a directory for a home that the service user can reach too; t.TempDir is closed to him.
func newHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "epg")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o711))
	return filepath.Join(dir, "pg")
}

var (
	makeOnce sync.Once
	made     string // the home that newCluster copies
)

// newCluster returns a home whose server has run before: it has a table "kept" with one row, 1. It is a copy, much
// faster than initdb.
func newCluster(t *testing.T) string {
	t.Helper()
	makeOnce.Do(func() {
		dir, err := os.MkdirTemp("", "epg")
		check(t, err)
		check(t, os.Chmod(dir, 0o711))
		made = filepath.Join(dir, "pg")
		s, err := Start(t.Context(), config(t, made))
		check(t, err)
		query(t, s.URL(), "CREATE TABLE kept AS SELECT 1 AS n")
		stop(t, s)
	})
	dir := newHome(t)
	if out, err := exec.Command("cp", "-a", made, dir).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	return dir
}

func config(t *testing.T, dir string) Config {
	return Config{DataDir: dir, Path: os.Getenv("PATH"), Log: zerolog.New(zerolog.NewTestWriter(t))}
}

// start is Start for a test that goes on with the server, and stops it at the end.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() { check(t, s.Stop(context.Background())) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	check(t, s.Stop(t.Context()))
}

// query returns the first column of the first row as text.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	answer, err := tryQuery(url, sql)
	check(t, err)
	return answer
}

func tryQuery(url, sql string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	result, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if last := result[len(result)-1]; len(last.Rows) > 0 {
		answer = string(last.Rows[0][0])
	}
	return answer, nil
}

// running tells whether any process of the server of dir lives.
func running(t *testing.T, dir string) bool {
	t.Helper()
	return held(t, filepath.Join(dir, serverLock))
}

// held tells whether somebody holds a lock.
func held(t *testing.T, name string) bool {
	t.Helper()
	file, err := os.Open(name)
	check(t, err)
	defer func() { _ = file.Close() }()
	free, err := tryLock(file, syscall.LOCK_EX)
	check(t, err)
	return !free
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q: %v", part, err)
		}
	}
}
