package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// Every query of the page works on a real database.
func TestDocsOfSQL(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	ctx := background(t)
	store := runstest.New(t)
	run, err := store.Enqueue(ctx, store.Pool(), runs.Spec{Steps: []runs.Step{{Name: "a", Shell: "true"}}}, runs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	blocks := sqlBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 10 {
		t.Fatalf("found %d queries", len(blocks))
	}
	for _, block := range blocks {
		sql := strings.ReplaceAll(block[1], ":'run'", "'"+run.String()+"'")
		if err := simple(ctx, store, sql); err != nil {
			t.Errorf("%v in:\n%s", err, sql)
		}
	}
}

// simple sends what may be several statements, as psql does.
func simple(ctx context.Context, store *runs.Store, sql string) error {
	conn, err := store.Pool().Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// What README says of exit statuses and settings is what the program says.
func TestDocsOfReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	providers, err := os.ReadFile("../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(readme) + string(providers)
	for line := range strings.Lines(exitHelp) {
		status, meaning, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if ok && !strings.Contains(text, "| "+status+" | "+meaning) {
			t.Errorf("README has no row %q for exit status %s", meaning, status)
		}
	}
	help := ""
	for _, command := range []string{"dev", "serve", "run"} {
		r := place{t, t.TempDir()}.must(exitOK, command, "--help")
		help += r.stdout
	}
	for _, name := range regexp.MustCompile(`\$([A-Z_]+)`).FindAllStringSubmatch(help, -1) {
		// A row may name several: `EXECUTOR_LOCAL_MEMORY`, `_CPUS`.
		short := name[1][strings.LastIndexByte(name[1], '_'):]
		if !strings.Contains(text, "`"+name[1]+"`") && !strings.Contains(text, "`"+short+"`") &&
			!strings.Contains(text, "`_"+strings.Join(strings.Split(name[1], "_")[2:], "_")+"`") {
			t.Errorf("neither README nor docs/providers.md tells of %s", name[1])
		}
	}
}
