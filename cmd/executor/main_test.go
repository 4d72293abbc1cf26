package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"executor/internal/runs/runstest"
)

// The tests drive the real binary as a process.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // tests wait for processes, most of the time
	dir, err := os.MkdirTemp("", "executor-cmd-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "executor")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return runstest.Main(m, func() {
		if shared.process != nil {
			shared.process.end(syscall.SIGTERM)
			removePostgres(shared.dir)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

// limit of everything a test waits for.
const limit = 30 * time.Second

// place is a data directory.
type place struct {
	t   *testing.T
	dir string
}

// newPlace is an empty data directory of the test's own. Its private Postgres
// may be elsewhere, so that is removed, too.
func newPlace(t *testing.T) place {
	t.Helper()
	p := place{t, t.TempDir()}
	t.Cleanup(func() { removePostgres(p.dir) })
	return p
}

func removePostgres(dir string) {
	url, err := os.ReadFile(filepath.Join(dir, urlFile))
	if err != nil {
		return
	}
	_, home, _ := strings.Cut(string(url), "host=")
	home, _, _ = strings.Cut(home, "/run&")
	if strings.Contains(home, "/postgres-") { // one that stands in for a directory that root's servant cannot enter
		_ = os.RemoveAll(home)
	}
}

func (p place) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "EXECUTOR_DATA_DIR=" + p.dir}, env...)
	return cmd
}

// result is a command that has ended.
type result struct {
	stdout, stderr string
	status         int
}

// run carries out a command to its end.
func (p place) run(args ...string) result { p.t.Helper(); return p.runIn("", nil, args...) }

func (p place) runIn(stdin string, env []string, args ...string) result {
	p.t.Helper()
	cmd := p.command(env, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must is run with an expected exit status.
func (p place) must(status int, args ...string) result {
	p.t.Helper()
	r := p.run(args...)
	r.want(p.t, status)
	return r
}

func (r result) want(t *testing.T, status int) {
	t.Helper()
	if r.status != status {
		t.Fatalf("exit status %d, want %d\nstdout: %s\nstderr: %s", r.status, status, r.stdout, r.stderr)
	}
}

// process is a command that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of stdout
	stderr *lockedBuffer
	done   chan struct{}
}

func (p place) start(env []string, args ...string) *process {
	p.t.Helper()
	proc := &process{t: p.t, cmd: p.command(env, args...), lines: make(chan string, 10_000), stderr: &lockedBuffer{}, done: make(chan struct{})}
	stdout, err := proc.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	proc.cmd.Stderr = proc.stderr
	if err := proc.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(proc.done)
		defer close(proc.lines)
		scanner := bufio.NewScanner(stdout)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			proc.lines <- scanner.Text()
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = proc.cmd.Wait()
	}()
	return proc
}

// await returns the first line of stdout that holds text.
func (p *process) await(text string) string {
	p.t.Helper()
	timeout := time.After(limit)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended without %q; stderr: %s", text, p.stderr)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			p.t.Fatalf("no %q within %s; stderr: %s", text, limit, p.stderr)
		}
	}
}

// wait returns its exit status.
func (p *process) wait() int {
	p.t.Helper()
	go func() {
		for range p.lines { // whoever waits reads no more
		}
	}()
	select {
	case <-p.done:
	case <-time.After(limit):
		_ = p.cmd.Process.Kill()
		p.t.Fatalf("it did not end within %s; stderr: %s", limit, p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) end(sig os.Signal) int {
	_ = p.cmd.Process.Signal(sig)
	return p.wait()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// dev starts "executor dev" and returns when it works.
func (p place) dev(env ...string) *process {
	p.t.Helper()
	proc := p.start(env, "dev", "--listen", "127.0.0.1:0")
	p.t.Cleanup(func() { proc.end(syscall.SIGTERM) })
	proc.await("is up")
	return proc
}

// sharedOutputCap is small, so that a test can pass it.
const sharedOutputCap = 64 << 10

var shared struct {
	once    sync.Once
	dir     string
	process *process
}

// world is a place where dev runs, for all tests that leave it running.
func world(t *testing.T) place {
	t.Helper()
	shared.once.Do(func() {
		shared.dir = filepath.Join(filepath.Dir(binary), "data")
		p := place{t, shared.dir}
		proc := p.start([]string{fmt.Sprintf("EXECUTOR_OUTPUT_CAP=%d", sharedOutputCap)}, "dev", "--listen", "127.0.0.1:0")
		proc.await("is up")
		shared.process = proc
	})
	if shared.process == nil {
		t.Fatal("dev did not start")
	}
	return place{t, shared.dir}
}

func background(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
