// Package arrows keeps packages from importing what they must not know.
package arrows

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "executor/"

type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Deps       []string
	Standard   bool
}

func TestForbiddenImports(t *testing.T) {
	packages := list(t)
	for _, rule := range []struct{ from, to, why string }{
		{"internal/runs", "executor/internal/jobs", "runs must work without knowing how it is delivered"},
		{"internal/runs", "github.com/riverqueue", "a run's state is in its own tables; River is one way to deliver it"},
		{"internal/sandbox", "executor/internal/runs", "a sandbox serves anybody who needs a place to execute in"},
		{"internal/sandbox", "github.com/jackc/pgx", "the ledger is an interface; its store is somebody else's"},
		{"internal/sandbox", "github.com/riverqueue", "a sandbox knows no queue"},
		{"internal/sandbox/local", "executor/internal/runs", "a provider knows hosts, not runs"},
		{"internal/sandbox/local", "github.com/jackc/pgx", "a provider keeps no state in Postgres"},
		{"internal/sandbox/docker", "executor/internal/runs", "a provider knows hosts, not runs"},
		{"internal/sandbox/docker", "github.com/jackc/pgx", "a provider keeps no state in Postgres"},
		{"internal/sandbox/drukbox", "executor/internal/runs", "a provider knows hosts, not runs"},
		{"internal/sandbox/drukbox", "github.com/jackc/pgx", "a provider keeps no state in Postgres"},
		{"internal/harness", "executor/internal/sandbox", "a harness is pure: it plans and reads, others execute"},
		{"internal/harness", "executor/internal/runs", "a harness is pure: it plans and reads, others execute"},
		{"internal/faults", "executor/", "everybody may name a fault, so faults may name nobody"},
		{"internal/embeddedpg", "executor/internal/", "a Postgres server knows nothing of runs"},
	} {
		p, ok := packages[module+rule.from]
		if !ok {
			t.Errorf("there is no package %s", rule.from)
			continue
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, rule.to) {
				t.Errorf("%s depends on %s: %s", rule.from, dep, rule.why)
			}
		}
	}
	for _, dep := range packages[module+"internal/faults"].Deps {
		if !packages[dep].Standard {
			t.Errorf("internal/faults depends on %s, which is not in the standard library", dep)
		}
	}
	for path, p := range packages {
		if !strings.HasPrefix(path, module) || strings.HasSuffix(path, "test") {
			continue
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, module) && strings.HasSuffix(dep, "test") {
				t.Errorf("%s depends on %s, which is for tests", path, dep)
			}
		}
	}
}

// What the environment says and where logs go is decided in cmd alone.
var ambient = regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ)\(|zerolog/log"|\blog\.(Print|Fatal|Panic)(f|ln)?\(|slog\.(Info|Warn|Error|Debug)\(`)

func TestNothingAmbientBelowCmd(t *testing.T) {
	for path, p := range list(t) {
		if !strings.HasPrefix(path, module+"internal/") && path != module+"migrations" || strings.HasSuffix(path, "test") {
			continue
		}
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if found := ambient.Find(text); found != nil {
				t.Errorf("%s/%s uses %q: pass it in", path, name, found)
			}
		}
	}
}

func list(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Deps,Standard", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}
