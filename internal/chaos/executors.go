package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// executor is one real process of the program at a time, behind a proxy.
type executor struct {
	index  int
	binary string
	data   string // shared: one machine, one root of hosts
	log    *os.File
	listen string
	proxy  *proxy
	url    string

	busy sync.Mutex // one fault at a time

	mu    sync.Mutex
	now   *process // nil: it is down
	lives []*process
}

// process is one life of an executor.
type process struct {
	cmd      *exec.Cmd
	pid      int
	started  time.Time
	gone     chan struct{}
	ended    time.Time // after gone
	expected bool      // we ended it
}

func (w *world) newExecutor(i int) (*executor, error) {
	x, err := newProxy(fmt.Sprintf("executor%d", i), w.pg.port)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("executor%d.log", i)))
	if err != nil {
		return nil, err
	}
	return &executor{index: i, binary: w.binary, data: w.data, log: log, proxy: x,
		listen: fmt.Sprintf("127.0.0.1:%d", port), url: w.pg.url(x.port())}, nil
}

// start begins a life.
func (e *executor) start() error {
	cmd := exec.Command(e.binary, "serve", "--database-url", e.url, "--data-dir", e.data, "--listen", e.listen,
		"--isolation", "bwrap", "--workers", "40", "--log-format", "json", "--grace", "20s")
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, started: time.Now(), gone: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.pid = cmd.Process.Pid
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = p
	e.lives = append(e.lives, p)
	go func() {
		_ = cmd.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		p.ended = time.Now()
		if e.now == p {
			e.now = nil
		}
		close(p.gone)
	}()
	return nil
}

// up is its present life, nil where it is down.
func (e *executor) up() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now
}

// ensure starts it where it is down: it may have given up by itself, as it may
// when Postgres is away at its start.
func (e *executor) ensure() error {
	if e.up() != nil {
		return nil
	}
	return e.start()
}

// signal sends it a signal; expected where that ends it.
func (e *executor) signal(sig syscall.Signal, ends bool) *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.now != nil {
		e.now.expected = e.now.expected || ends
		_ = e.now.cmd.Process.Signal(sig)
	}
	return e.now
}

// ready reports whether it says that it takes runs.
func (e *executor) ready(ctx context.Context) bool {
	_, err := e.get(ctx, "/readyz")
	return err == nil
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines is how many it has; -1 where it does not say.
func (e *executor) goroutines(ctx context.Context) int {
	text, err := e.get(ctx, "/metrics")
	if found := goroutines.FindStringSubmatch(text); err == nil && found != nil {
		n, _ := strconv.Atoi(found[1])
		return n
	}
	return -1
}

func (e *executor) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.listen+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(content), err
}
