package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"executor/internal/embeddedpg"
	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/migrations"
)

const (
	connectLimit  = 15 * time.Second
	postgresWait  = time.Minute // for serve; whoever started it starts it again then
	clientConns   = 4
	postgresGrace = 20 * time.Second // for the private server's end
)

// database is an open pool, and the private server behind it if there is one.
type database struct {
	pool   *pgxpool.Pool
	url    string
	server *embeddedpg.Server
}

// urlFile is in the data directory once it has a private Postgres. It holds
// its URL, which is no secret.
const urlFile = "postgres.url"

// client opens the store for a command that looks at runs or enqueues them.
func (a *app) client(ctx context.Context) (_ *runs.Store, db *database, err error) {
	db, err = a.open(ctx, clientConns)
	if err != nil {
		return nil, nil, err
	}
	if err := migrations.Check(ctx, db.pool, a.Schema); err != nil {
		return nil, nil, errors.Join(err, db.close())
	}
	return a.store(db), db, nil
}

func (a *app) store(db *database) *runs.Store {
	return runs.NewStore(db.pool, a.Schema, jobs.DefaultConfig().Lease, a.log)
}

// open connects to the database that was named, else to the private one of the
// data directory, if it has one.
func (a *app) open(ctx context.Context, conns int) (*database, error) {
	if a.DatabaseURL != "" {
		return connect(ctx, a.DatabaseURL, conns)
	}
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, urlFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no database: set DATABASE_URL (or --database-url), or start \"executor dev\" first; there is no private Postgres in %s (EXECUTOR_DATA_DIR, --data-dir)", dir)
	}
	return a.openPrivate(ctx, conns)
}

// openPrivate starts or joins the private Postgres of the data directory.
func (a *app) openPrivate(ctx context.Context, conns int) (*database, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	server, err := embeddedpg.Start(ctx, embeddedpg.Config{
		DataDir:  filepath.Join(dir, "postgres"),
		Path:     searchPath(),
		CacheDir: cacheDir(),
		Log:      a.log,
	})
	if err != nil {
		return nil, err
	}
	db, err := connect(ctx, server.URL(), conns)
	if err == nil {
		db.server = server
		err = noteURL(dir, server.URL())
	}
	if err != nil {
		return nil, errors.Join(err, stopPostgres(server))
	}
	return db, nil
}

// noteURL writes the URL where other commands, and people, look for it. They
// see all of it or none.
func noteURL(dir, url string) error {
	file, content := filepath.Join(dir, urlFile), url+"\n"
	if have, err := os.ReadFile(file); err == nil && string(have) == content {
		return nil
	}
	fresh, err := os.CreateTemp(dir, "."+urlFile+"-*")
	if err != nil {
		return err
	}
	_, err = fresh.WriteString(content)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), file)
	}
	if err != nil {
		_ = os.Remove(fresh.Name())
	}
	return err
}

// connect opens a pool and sees that Postgres answers.
func connect(ctx context.Context, url string, conns int) (*database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usagef("DATABASE_URL (--database-url): expected something like postgres://user:password@host:5432/database: %w", err)
	}
	config.MaxConns = int32(conns)
	config.MaxConnIdleTime = 5 * time.Minute
	config.ConnConfig.RuntimeParams["application_name"] = "executor"
	// A peer that vanished without a word is noticed within half a minute.
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	config.ConnConfig.DialFunc = dialer.DialContext
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectLimit
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("Postgres cannot be reached: %w", err)
	}
	return &database{pool: pool, url: url}, nil
}

// patiently repeats what needs Postgres while that does not answer, for a
// while: it may be restarting, or starting together with us.
func (a *app) patiently(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, postgresWait)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || !passes(err) {
			return err
		}
		a.log.Warn().Err(err).Msg("waiting for Postgres")
		if pause(ctx, time.Second) != nil {
			return err
		}
	}
}

// passes reports whether trouble with Postgres may go away by itself: it does
// not answer, or says that it starts, stops or is full. SQLSTATE classes are
// from the PostgreSQL manual, appendix A.
func passes(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		class := said.Code[:2]
		return class == "08" || class == "53" || class == "57" // connection, resources, operator
	}
	var unconnected *pgconn.ConnectError
	var broken net.Error
	return errors.As(err, &unconnected) || errors.As(err, &broken) || errors.Is(err, io.ErrUnexpectedEOF)
}

// close lets go of the pool, and of the private server.
func (db *database) close() error {
	db.pool.Close()
	if db.server == nil {
		return nil
	}
	return stopPostgres(db.server)
}

func stopPostgres(server *embeddedpg.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), postgresGrace)
	defer cancel()
	return server.Stop(ctx)
}
