package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/sandbox"
)

// DB is what a statement needs: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

var (
	// ErrNotFound: there is no such run.
	ErrNotFound = errors.New("no such run")
	// ErrFenced: somebody else works on the run now, or we can no longer know
	// that nobody does. Touch neither run, host nor job.
	ErrFenced = sandbox.ErrFenced
	// ErrNotRetryable: only a failed or cancelled run can be reopened.
	ErrNotRetryable = errors.New("only a failed or cancelled run can be retried")
)

// What the SQL functions fence and refuse_if_cancelled raise.
const (
	sqlstateFenced    = "EXF01"
	sqlstateCancelled = "EXF02"
)

// Store is all of the project's SQL about runs. Its literals name the schema
// "executor"; q puts the configured one in its place.
type Store struct {
	pool    *pgxpool.Pool
	schema  string
	log     zerolog.Logger
	lease   time.Duration // how long a worker's write is retried before it must assume to be fenced off
	queries sync.Map      // literal → statement for schema
}

// NewStore returns the store of the schema. lease is the executors' lease.
func NewStore(pool *pgxpool.Pool, schema string, lease time.Duration, log zerolog.Logger) *Store {
	return &Store{pool: pool, schema: schema, lease: lease, log: log}
}

// Pool is the store's connection pool.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Schema is where the tables live.
func (s *Store) Schema() string { return s.schema }

// q is the statement for the configured schema.
func (s *Store) q(literal string) string {
	if s.schema == "executor" {
		return literal
	}
	if stmt, ok := s.queries.Load(literal); ok {
		return stmt.(string)
	}
	stmt := strings.ReplaceAll(literal, "executor.", s.schema+".")
	s.queries.Store(literal, stmt)
	return stmt
}

// persist carries a worker's write through trouble with Postgres: it is
// repeated until it succeeds, is refused, or the lease has passed, and then
// the worker is fenced off. write must be repeatable: a commit whose answer
// was lost is done again. The run's own cancellation does not stop it.
func (s *Store) persist(ctx context.Context, what string, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.lease)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := write(ctx)
		switch {
		case err == nil || errors.Is(err, ErrFenced):
			return err
		case isFence(err):
			return ErrFenced
		case sqlstate(err) == sqlstateCancelled:
			return ErrCancelled
		case !passing(err):
			return fmt.Errorf("%s: %w", what, err)
		}
		s.log.Warn().Err(err).Str("write", what).Msg("postgres does not take a write; trying again")
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ErrFenced, err)
		case <-time.After(wait):
		}
	}
}

// brief begins a transaction of several statements. Postgres ends it when its
// owner falls silent in the middle: an executor that is paused, or whose machine
// is gone, must not keep a run locked.
var brief = pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'`}

// batch sends the statements as one implicit transaction.
func (s *Store) batch(ctx context.Context, b *pgx.Batch) error {
	return s.pool.SendBatch(ctx, b).Close()
}

func isFence(err error) bool { return sqlstate(err) == sqlstateFenced }

// sqlstate is Postgres's code for the error; empty where Postgres raised none.
func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// passing reports whether the error may go away by itself: the connection
// broke, or Postgres says that it cannot take writes now. SQLSTATE classes are
// from the PostgreSQL manual, appendix A.
func passing(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, pgx.ErrTooManyRows)
	}
	switch pg.Code[:2] {
	case "08", // connection exception
		"53", // insufficient resources
		"57", // operator intervention, statement timeout
		"40": // rolled back: serialization, deadlock
		return true
	}
	switch pg.Code {
	case "25006", // read-only transaction: a standby
		"25P03", // it was too long in coming: we were paused
		"55P03", // lock not available
		"0A000": // cached plan must not change result type
		return true
	}
	return false
}
