package local_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
	"executor/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	sandboxtest.Executor(func(world string) (sandbox.Provider, error) {
		mode, root, _ := strings.Cut(world, " ")
		return local.New(context.Background(), config(root, local.Mode(mode)))
	})
	goleak.VerifyTestMain(m)
}

// modes runs a test in each mode of isolation, on a root of its own, below
// which no process may be left. A machine without bubblewrap fails it.
func modes(t *testing.T, test func(t *testing.T, root string, mode local.Mode)) {
	t.Parallel()
	for _, mode := range []local.Mode{local.Bwrap, local.Plain} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			t.Cleanup(func() {
				if left, err := local.Left(root); left > 0 || err != nil {
					t.Errorf("%d processes are left, %v", left, err)
				}
			})
			test(t, root, mode)
		})
	}
}

func TestSuite(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		sandboxtest.Suite(t, sandboxtest.Subject{
			Open:      func(t *testing.T) sandbox.Provider { return open(t, root, mode) },
			World:     string(mode) + " " + root,
			SmallDisk: func(t *testing.T) sandbox.Provider { return open(t, tiny(t), mode) },
			SmallMemory: func(t *testing.T) sandbox.Provider {
				p, _ := openLimited(t, t.TempDir(), mode, local.Limits{MemoryBytes: 64 << 20})
				return p
			},
			Processes:   inHost,
			Left:        func(t *testing.T) []string { return left(t, root) },
			SharedFiles: mode == local.Plain,
			Light:       mode == local.Plain,
			Ceiling: func(t *testing.T, bytes int64) sandbox.Provider {
				return open(t, root, mode, func(c *local.Config) { c.OutputCeiling = bytes })
			},
			GivesBack: true,
		})
	})
}

func inHost(t *testing.T, p sandbox.Provider, host sandbox.Host) int {
	t.Helper()
	n, err := p.(*local.Provider).InHost(host.ID)
	if err != nil {
		t.Error(err)
	}
	return n
}

// left is what is left in a root without hosts.
func left(t *testing.T, root string) (left []string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	return left
}

func open(t testing.TB, root string, mode local.Mode, change ...func(*local.Config)) *local.Provider {
	t.Helper()
	cfg := config(root, mode)
	for _, c := range change {
		c(&cfg)
	}
	p, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func config(root string, mode local.Mode) local.Config {
	return local.Config{Root: root, Machine: "here", Isolation: mode, Path: os.Getenv("PATH"), Log: zerolog.Nop()}
}

var spec = sandbox.HostSpec{Key: sandbox.StepKey("run", "step"), RunID: "run"}

// dial makes a host that goes with the test.
func dial(t testing.TB, p *local.Provider) sandbox.Conn {
	t.Helper()
	conn, _ := dialHost(t, p, spec)
	return conn
}

func dialHost(t testing.TB, p *local.Provider, spec sandbox.HostSpec) (sandbox.Conn, sandbox.Host) {
	t.Helper()
	host, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Delete(context.Background(), host.ID); err != nil {
			t.Error("delete:", err)
		}
	})
	conn, err := p.Dial(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	return conn, host
}

func launch(n int) sandbox.Launch { return sandbox.Launch{RunID: "run", Step: "step", N: n} }

func shell(script string) sandbox.Command {
	return sandbox.Command{Argv: []string{"sh", "-c", script}}
}

func start(t *testing.T, conn sandbox.Conn, n int, cmd sandbox.Command) sandbox.Process {
	t.Helper()
	p, err := conn.Start(t.Context(), launch(n), cmd)
	if err != nil {
		t.Fatal("start:", err)
	}
	return p
}

// follow returns everything on stdout.
func follow(t *testing.T, conn sandbox.Conn, n int) (string, sandbox.Exit, error) {
	t.Helper()
	var out bytes.Buffer
	exit, err := conn.Follow(t.Context(), launch(n), sandbox.Offsets{}, func(s sandbox.Stream, _ int64, data []byte) error {
		if s == sandbox.Stdout {
			out.Write(data)
		} else {
			t.Logf("stderr: %s", data)
		}
		return nil
	})
	return out.String(), exit, err
}

// printed waits until the process has printed something.
func printed(t *testing.T, conn sandbox.Conn, n int) string {
	t.Helper()
	var out string
	_, err := conn.Follow(t.Context(), launch(n), sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
		out = string(data)
		return context.Canceled
	})
	if err != context.Canceled {
		t.Fatal("it printed nothing:", err)
	}
	return out
}

func sh(t *testing.T, conn sandbox.Conn, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	exit, err := conn.Exec(t.Context(), shell(script), sandbox.Stdio{Out: &out, Err: &errs})
	if err != nil || !exit.Success() {
		t.Fatalf("%s: %+v, %v, %s", script, exit, err, errs.String())
	}
	return out.String()
}

func code(err error) string {
	if err == nil {
		return ""
	}
	return faults.Of(err).Kind.Code()
}

// look finds a program of this machine. In CI it has to be there.
func look(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	path, _ = filepath.Abs(path)
	return path
}
