// Package migrations brings a database to the schema this program works with:
// its own tables by goose, River's by River's migrator, and the table of
// failure codes, all in one schema and under one lock. It imports faults and
// nothing else of the project.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/rs/zerolog"

	"executor/internal/faults"
)

//go:embed *.sql
var files embed.FS

// DefaultSchema is where everything lives unless configured otherwise.
const DefaultSchema = "executor"

var schemaRE = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// ValidSchema reports whether name can be used as the schema: 1 to 40 of
// lower-case letters, digits and '_', not beginning with a digit. River's
// notification topics carry the name, which limits its length.
func ValidSchema(name string) bool {
	return schemaRE.MatchString(name) && !strings.HasPrefix(name, "pg_")
}

// Migration is one step of either line.
type Migration struct {
	Line    string // "executor" or "river"
	Version int64
	Name    string
	Applied bool
}

// Up applies what is missing. Any number of processes may call it at once:
// they take turns, and the later ones find nothing to do. The lock is a
// transaction's, so that it holds behind a transaction-pooling proxy too.
func Up(ctx context.Context, pool *pgxpool.Pool, schema string, log zerolog.Logger) error {
	if !ValidSchema(schema) {
		return fmt.Errorf("schema %q: expected 1 to 40 lower-case letters, digits or '_'", schema)
	}
	lock, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer lock.Rollback(context.WithoutCancel(ctx))
	if _, err := lock.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := lock.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "executor.migrations."+schema); err != nil {
		return fmt.Errorf("migrate: lock: %w", err)
	}

	if err := createSchema(ctx, pool, schema); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	river, err := riverMigrator(pool, schema)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	applied, err := river.Migrate(ctx, rivermigrate.DirectionUp, nil)
	if err != nil {
		return fmt.Errorf("migrate: river: %w", err)
	}
	for _, v := range applied.Versions {
		log.Info().Str("line", "river").Int("version", v.Version).Str("name", v.Name).Msg("migrated")
	}
	err = withGoose(pool, schema, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		for _, r := range results {
			log.Info().Str("line", "executor").Int64("version", r.Source.Version).Dur("took", r.Duration).Msg("migrated")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate: executor: %w", err)
	}
	if err := seedFailureCodes(ctx, pool, schema); err != nil {
		return fmt.Errorf("migrate: failure codes: %w", err)
	}
	return nil
}

// createSchema asks first: CREATE SCHEMA IF NOT EXISTS wants the privilege to
// create even where there is nothing to do.
func createSchema(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&exists); err != nil || exists {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE SCHEMA `+pgx.Identifier{schema}.Sanitize())
	return err
}

// Status lists every migration of both lines, oldest first, and whether it is
// applied. It changes nothing.
func Status(ctx context.Context, pool *pgxpool.Pool, schema string) ([]Migration, error) {
	if !ValidSchema(schema) {
		return nil, fmt.Errorf("schema %q: expected 1 to 40 lower-case letters, digits or '_'", schema)
	}
	river, err := riverMigrator(pool, schema)
	if err != nil {
		return nil, err
	}
	existing, err := river.ExistingVersions(ctx)
	if err != nil {
		return nil, fmt.Errorf("migration status: river: %w", err)
	}
	have := map[int]bool{}
	for _, m := range existing {
		have[m.Version] = true
	}
	var all []Migration
	for _, m := range river.AllVersions() {
		all = append(all, Migration{"river", int64(m.Version), m.Name, have[m.Version]})
	}

	own, err := appliedOwn(ctx, pool, schema)
	if err != nil {
		return nil, fmt.Errorf("migration status: executor: %w", err)
	}
	sources, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	for _, name := range sources {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, err
		}
		title := strings.TrimSuffix(name[strings.IndexByte(name, '_')+1:], ".sql")
		all = append(all, Migration{"executor", version, title, own[version]})
	}
	return all, nil
}

// ErrPending is in the error of Check when migrations are missing.
var ErrPending = errors.New("the database is not migrated; run: executor migrate up")

// Check returns ErrPending unless every migration is applied.
func Check(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	all, err := Status(ctx, pool, schema)
	if err != nil {
		return err
	}
	for _, m := range all {
		if !m.Applied {
			return fmt.Errorf("%s migration %d (%s) is missing in schema %q: %w", m.Line, m.Version, m.Name, schema, ErrPending)
		}
	}
	return nil
}

func appliedOwn(ctx context.Context, pool *pgxpool.Pool, schema string) (map[int64]bool, error) {
	table := pgx.Identifier{schema, "goose_db_version"}.Sanitize()
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	rows, err := pool.Query(ctx, `SELECT version_id FROM `+table+` WHERE is_applied`)
	if err != nil {
		return nil, err
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	applied := map[int64]bool{}
	for _, v := range versions {
		applied[v] = true
	}
	return applied, err
}

func riverMigrator(pool *pgxpool.Pool, schema string) (*rivermigrate.Migrator[pgx.Tx], error) {
	return rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: schema})
}

// withGoose runs do with a goose provider whose connections see the schema
// first. The search_path is set by a statement, not in the startup packet,
// which PgBouncer refuses.
func withGoose(pool *pgxpool.Pool, schema string, do func(*goose.Provider) error) error {
	db := stdlib.OpenDB(*pool.Config().ConnConfig, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		// Temporary tables last: functions that run as their owner keep this
		// path, and nobody may slip them a table.
		_, err := conn.Exec(ctx, `SET search_path TO `+pgx.Identifier{schema}.Sanitize()+`, pg_temp`)
		return err
	}))
	defer func(db *sql.DB) { _ = db.Close() }(db)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return do(provider)
}

// seedFailureCodes makes the table say what this program's table says. It
// deletes nothing: an older program must not take away a newer one's codes.
func seedFailureCodes(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	batch := &pgx.Batch{}
	for _, k := range faults.Kinds() {
		var parent *string
		if k.Parent() != nil {
			code := k.Parent().Code()
			parent = &code
		}
		batch.Queue(`
			INSERT INTO `+pgx.Identifier{schema, "failure_codes"}.Sanitize()+` (code, parent, policy, meaning)
			VALUES ($1, $2, $3, $4)
			ON CONFLICT (code) DO UPDATE SET parent = $2, policy = $3, meaning = $4, retired_at = NULL`,
			k.Code(), parent, k.Policy().String(), k.Doc())
	}
	return pool.SendBatch(ctx, batch).Close()
}

// Source is the text of all migrations, to tell one state of them from
// another.
func Source() []byte {
	var all []byte
	names, _ := fs.Glob(files, "*.sql") // the pattern is good
	for _, name := range names {
		text, _ := files.ReadFile(name) // it was just listed
		all = append(all, text...)
	}
	return all
}
