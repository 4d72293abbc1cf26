package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"executor/migrations"
)

// globals is the part of the configuration that every command has.
type globals struct {
	DatabaseURL string `group:"For every command:" name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres to work with. Without it: the private one of the data directory, which \"executor dev\" makes."`
	Schema      string `group:"For every command:" env:"EXECUTOR_SCHEMA" default:"executor" help:"Schema that everything lives in."`
	DataDir     string `group:"For every command:" env:"EXECUTOR_DATA_DIR" placeholder:"DIR" default:"${data_dir}" help:"Where the private Postgres and the local provider's hosts live (${default})."`
	LogLevel    string `group:"For every command:" env:"EXECUTOR_LOG_LEVEL" placeholder:"LEVEL" enum:",trace,debug,info,warn,error" default:"" help:"trace, debug, info, warn or error. Default: info for dev and serve, warn for the others."`
	LogFormat   string `group:"For every command:" env:"EXECUTOR_LOG_FORMAT" placeholder:"FORMAT" enum:"auto,console,json" default:"auto" help:"console, json, or auto: console on a terminal."`
}

// Validate is called by kong.
func (g *globals) Validate() error {
	if !migrations.ValidSchema(g.Schema) {
		return fmt.Errorf("--schema: expected 1 to 40 lower-case letters, digits or '_', not beginning with a digit or pg_, got %q", g.Schema)
	}
	return nil
}

// serving is the configuration of a process that executes runs.
type serving struct {
	Listen    string        `env:"EXECUTOR_LISTEN" default:"${listen}" placeholder:"ADDR" help:"Loopback address of the API and River UI (${default})."`
	Workers   int           `env:"EXECUTOR_WORKERS" default:"50" help:"Runs at the same time, per queue."`
	Queues    []string      `env:"EXECUTOR_QUEUES" default:"default" placeholder:"NAME" help:"Queues to work on (${default})."`
	Grace     time.Duration `env:"EXECUTOR_GRACE" default:"30s" help:"How long letting go of everything may take at the end. Processes go on without it."`
	PollOnly  bool          `env:"EXECUTOR_POLL_ONLY" help:"Ask Postgres for work instead of listening, and keep no session: for a proxy that pools transactions."`
	OutputCap int64         `env:"EXECUTOR_OUTPUT_CAP" default:"16777216" placeholder:"BYTES" help:"Bytes kept of each output stream of a process (${default})."`
	isolation `embed:""`
	providing `embed:""`
}

// Validate is called by kong.
func (s *serving) Validate() error {
	switch {
	case s.Workers < 1 || s.Workers > 10_000:
		return fmt.Errorf("--workers: expected 1 to 10000, got %d", s.Workers)
	case s.Grace <= 0:
		return fmt.Errorf("--grace: expected a duration such as 30s, got %s", s.Grace)
	case s.OutputCap < 4<<10:
		return fmt.Errorf("--output-cap: expected at least 4096 bytes, got %d", s.OutputCap)
	}
	if err := s.providing.check(); err != nil {
		return err
	}
	for _, q := range s.Queues {
		if len(q) > 64 || !queueName.MatchString(q) {
			return fmt.Errorf("--queues: expected names of 1 to 64 lower-case letters and digits, parted by single '_' or '-', got %q", q)
		}
	}
	return nil
}

var queueName = regexp.MustCompile(`^[a-z0-9]+([_-][a-z0-9]+)*$`)

// isolation is the configuration of the local provider.
type isolation struct {
	Isolation string   `env:"EXECUTOR_ISOLATION" enum:"auto,bwrap,plain" default:"auto" help:"How local processes are isolated: bwrap (bubblewrap, or refuse to start), plain (not at all), or auto: bubblewrap where it works."`
	Memory    int64    `name:"local-memory" env:"EXECUTOR_LOCAL_MEMORY" placeholder:"BYTES" help:"Limit of a local host, by cgroup; 0: none."`
	CPUs      float64  `name:"local-cpus" env:"EXECUTOR_LOCAL_CPUS" placeholder:"N" help:"Limit of a local host, by cgroup; 0: none."`
	PIDs      int64    `name:"local-pids" env:"EXECUTOR_LOCAL_PIDS" placeholder:"N" help:"Limit of a local host's processes, by cgroup; 0: none."`
	Hide      []string `env:"EXECUTOR_HIDE" placeholder:"PATH" default:"${hide}" help:"Files and directories of this machine that isolated processes must not see. Default: where credentials usually are (${default})."`
}

// defaultListen is where dev and serve listen unless told otherwise.
const defaultListen = "127.0.0.1:8686"

// defaultHide is where people keep credentials.
var defaultHide = []string{
	"~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.config/gcloud", "~/.config/gh",
	"~/.netrc", "~/.git-credentials", "~/.pgpass",
}

// defaultDataDir follows the XDG base directory specification. It is empty
// where there is no home.
func defaultDataDir() string {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "executor")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "executor")
}

// dataDir makes the data directory and returns its absolute path.
func (g *globals) dataDir() (string, error) {
	if g.DataDir == "" {
		return "", usagef("there is no home directory: set EXECUTOR_DATA_DIR (--data-dir)")
	}
	dir, err := filepath.Abs(expandHome(g.DataDir))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "executor")
}

func expandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~/")
	home, err := os.UserHomeDir()
	if !ok || err != nil {
		return path
	}
	return filepath.Join(home, rest)
}

// searchPath is the PATH on which programs of this machine are looked up.
func searchPath() string { return os.Getenv("PATH") }

// machine names the place that local hosts can be reached from: the data
// directory. It is a file in it, because what else names a machine
// (/etc/machine-id, the host's name) is often the same in every container.
func machine(dataDir string) (string, error) {
	file := filepath.Join(dataDir, "machine")
	if id, err := os.ReadFile(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(id)), err
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "machine"
	}
	fresh, err := os.CreateTemp(dataDir, ".machine-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(fresh.Name())
	_, err = fmt.Fprintf(fresh, "%s-%s\n", hostname, uuid.NewString()[:8])
	if err := errors.Join(err, fresh.Close()); err != nil {
		return "", err
	}
	// Two processes that start at once agree on the first one's name.
	if err := os.Link(fresh.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	id, err := os.ReadFile(file)
	return strings.TrimSpace(string(id)), err
}
