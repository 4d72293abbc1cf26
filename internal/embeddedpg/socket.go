package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	runName = "run"

	role          = "executor"
	database      = "executor"
	adminDatabase = "postgres"

	socketPort = "5432" // a part of the socket's name, no port is open
	socketName = ".s.PGSQL." + socketPort

	// maxSocketPath is the room in sockaddr_un without the final zero: 107 bytes on Linux, 103 on macOS.
	maxSocketPath = 103

	// probeLimit bounds one connection attempt.
	probeLimit = 5 * time.Second
)

// plainPath is what neither a URL nor Postgres's and libpq's comma-separated lists read as something else.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._-]+$`)

// socketDir is where clients find the server.
func (h home) socketDir() string {
	if h.socketIsHome() {
		return h.path(runName)
	}
	return fmt.Sprintf("/tmp/executor-%d-%s", h.as.uid, key(h.dir))
}

// listenDir is the same place as the server, whose directory is the cluster, names it. A relative name lasts no
// longer than the home: a server whose home has been deleted must not remove the socket of the next one.
func (h home) listenDir() string {
	if h.socketIsHome() {
		return "../" + runName
	}
	return h.socketDir()
}

func (h home) socketIsHome() bool {
	dir := h.path(runName)
	return len(dir+"/"+socketName) <= maxSocketPath && plainPath.MatchString(dir)
}

// makeSocketDir creates socketDir. In /tmp anybody may have been there first: a directory that is not the account's
// own, or is open to others, is refused.
func (h home) makeSocketDir() error {
	dir := h.socketDir()
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := h.as.own(dir); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if uid, _ := owner(info); !info.IsDir() || uid != h.as.uid || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory of uid %d alone, so the server's socket is not safe in it: remove it",
			dir, h.as.uid)
	}
	return nil
}

// url names everything that a client would else take from its environment.
func (h home) url(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(role),
		Path:     "/" + database,
		RawQuery: "host=" + h.socketDir() + "&port=" + socketPort + "&sslmode=disable",
	}
	return u.String()
}

// probe connects and asks for an answer. See isAnswer and mayPass for its error.
func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.Ping(ctx)
}

// isAnswer tells whether a probe's error comes from the server: it lives, but does not serve us.
func isAnswer(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer)
}

// mayPass tells whether a probe that failed with err may succeed later.
func mayPass(err error) bool {
	var answer *pgconn.PgError
	var ours *pgconn.ParseConfigError // pgx reads PGSERVICE and the like, whatever the URL says
	switch {
	case errors.As(err, &answer):
		// Class 57: starting, recovering, shutting down. 53300: all connections are in use.
		return strings.HasPrefix(answer.Code, "57") || answer.Code == "53300"
	default:
		return !errors.As(err, &ours)
	}
}

// ensureDatabase creates the database that the URL names.
func ensureDatabase(ctx context.Context, adminURL string) error {
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()

	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, database).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE `+database)
	return err
}
