// Package runstest gives each test a private, migrated database on a real
// Postgres: the one TEST_DATABASE_URL names, else an embedded one that all
// test processes share.
package runstest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"executor/internal/embeddedpg"
	"executor/internal/faults"
	"executor/internal/runs"
	"executor/migrations"
)

// Lease of the stores that tests get.
const Lease = 15 * time.Second

var server = sync.OnceValues(func() (string, error) {
	if u := os.Getenv("TEST_DATABASE_URL"); u != "" {
		return u, nil
	}
	pg, err := embeddedpg.Start(context.Background(), embeddedpg.Config{
		DataDir: filepath.Join(os.TempDir(), fmt.Sprintf("executor-test-postgres-%d", os.Getuid())),
		Path:    os.Getenv("PATH"),
		Log:     zerolog.Nop(),
	})
	if err != nil {
		return "", err
	}
	running = pg
	return pg.URL(), nil
})

var running *embeddedpg.Server

// Main runs a package's tests and then what they share is closed by; it fails
// when goroutines are left behind, and lets go of the embedded server. Call it
// from TestMain.
func Main(m *testing.M, after ...func()) int {
	code := m.Run()
	for _, close := range after {
		close()
	}
	if err := leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if running != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := running.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "embedded Postgres:", err)
		}
	}
	return code
}

// leaks finds goroutines that do not end. River's client may take a while to
// notice that Postgres is away for good; the embedded server is waited for as
// long as other test processes use it.
func leaks() (err error) {
	for range 20 {
		if err = goleak.Find(goleak.IgnoreAnyFunction("executor/internal/embeddedpg.(*Server).spawn.func2")); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

// URL returns the address of a fresh, migrated database of the test's own.
func URL(t testing.TB) string {
	t.Helper()
	base, err := server()
	if err != nil {
		t.Fatalf("tests need a Postgres server: %v", err)
	}
	ctx := context.Background()
	template, err := template(ctx, base)
	if err != nil {
		t.Fatalf("template database: %v", err)
	}
	name := "t_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	admin(t, base, fmt.Sprintf(`CREATE DATABASE %s TEMPLATE %s`, name, template))
	t.Cleanup(func() { admin(t, base, fmt.Sprintf(`DROP DATABASE %s WITH (FORCE)`, name)) })
	return withDatabase(base, name)
}

// Empty returns the address of a fresh database without any schema.
func Empty(t testing.TB) string {
	t.Helper()
	base, err := server()
	if err != nil {
		t.Fatalf("tests need a Postgres server: %v", err)
	}
	name := "t_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	admin(t, base, fmt.Sprintf(`CREATE DATABASE %s`, name))
	t.Cleanup(func() { admin(t, base, fmt.Sprintf(`DROP DATABASE %s WITH (FORCE)`, name)) })
	return withDatabase(base, name)
}

// New returns a store on a fresh database of the test's own.
func New(t testing.TB) *runs.Store {
	t.Helper()
	return runs.NewStore(Pool(t, URL(t)), migrations.DefaultSchema, Lease, Log(t))
}

// Pool connects to a database until the test ends.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// template makes the migrated database that tests copy, once for each state of
// the migrations.
func template(ctx context.Context, base string) (string, error) {
	name := "template_" + migrationsHash()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(7264839)`); err != nil {
		return "", err
	}
	var ready bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)`, name).Scan(&ready); err != nil || ready {
		return name, err
	}
	for _, stmt := range []string{`DROP DATABASE IF EXISTS ` + name, `CREATE DATABASE ` + name} {
		if _, err := conn.Exec(ctx, stmt); err != nil {
			return "", err
		}
	}
	pool, err := pgxpool.New(ctx, withDatabase(base, name))
	if err != nil {
		return "", err
	}
	err = migrations.Up(ctx, pool, migrations.DefaultSchema, zerolog.Nop())
	pool.Close()
	if err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, `ALTER DATABASE `+name+` WITH IS_TEMPLATE true`)
	return name, err
}

func migrationsHash() string {
	h := sha256.New()
	h.Write(migrations.Source())
	for _, k := range faults.Kinds() {
		fmt.Fprintln(h, k.Code(), k.Policy(), k.Doc())
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// admin runs a statement that concerns a whole database. Postgres refuses
// CREATE DATABASE while somebody is connected to the template for a moment.
func admin(t testing.TB, base, stmt string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, stmt); err != nil {
		t.Fatalf("%s: %v", stmt, err)
	}
}

func withDatabase(base, name string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}
