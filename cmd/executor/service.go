package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"executor/internal/api"
	"executor/internal/jobs"
	"executor/internal/runs"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
	"executor/migrations"
)

// restartPause is between an executor that was fenced off and the next.
const restartPause = time.Second

// reaperLate is how old the last pass of any reaper may be.
const reaperLate = 30 * time.Second

// service is everything that executes runs and answers requests.
type service struct {
	store    *runs.Store
	local    *local.Provider // nil where it is not configured
	executor *jobs.Executor
	front    http.Handler
	listener net.Listener
	ready    atomic.Bool // the executor claims runs
	begun    func()      // called once, when it first does
	log      zerolog.Logger
}

// listen opens the address of the API. Where that is only the default, and
// taken, dev and demo use any free port.
func listen(ctx context.Context, addr string, anyPort bool) (net.Listener, error) {
	l, err := api.Listen(ctx, addr)
	if anyPort && addr == defaultListen && errors.Is(err, syscall.EADDRINUSE) {
		l, err = api.Listen(ctx, "127.0.0.1:0")
	}
	var refused *net.OpError // by the system
	if err != nil && !errors.As(err, &refused) {
		return nil, usagef("--listen (EXECUTOR_LISTEN): %w", err)
	}
	return l, err
}

// poolSize is how many connections an executor of so many workers gets. Most
// of the time a worker waits for its process and needs none.
func poolSize(workers int) int { return min(workers/4+8, 40) }

// wire builds the service in the order in which its parts need each other.
func (a *app) wire(ctx context.Context, cfg serving, db *database, listener net.Listener) (*service, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	place, err := machine(dir)
	if err != nil {
		return nil, err
	}
	store := a.store(db)
	var installation uuid.UUID
	err = a.patiently(ctx, func(ctx context.Context) (err error) { installation, err = store.Installation(ctx); return err })
	if err != nil {
		return nil, err
	}
	providers, own, err := a.providers(ctx, cfg, dir, place, installation.String(), db)
	if err != nil {
		return nil, err
	}
	s := &service{store: store, local: own, listener: listener, begun: func() {}, log: a.log}
	begun := sync.OnceFunc(func() { s.begun() })
	sandboxes := sandbox.NewClient(sandbox.DefaultTimeouts(), a.log, providers...)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.executor = &jobs.Executor{
		Config:    a.executorConfig(cfg, place),
		Store:     s.store,
		Sandboxes: sandboxes,
		Runner: &runs.Runner{
			Store: s.store, Sandboxes: sandboxes, Provider: cfg.Providers[0], Machine: place, OutputCap: cfg.OutputCap,
			Log: a.log, Now: time.Now, Jitter: rand.Float64,
		},
		Metrics: jobs.NewMetrics(registry),
		Log:     a.log,
		Ready: func(ready bool) {
			s.ready.Store(ready)
			if ready {
				begun()
			}
		},
	}
	inspector, err := jobs.NewInspector(s.store, a.log)
	if err != nil {
		return nil, err
	}
	ui, err := api.NewRiverUI(ctx, inspector, a.log)
	if err != nil {
		return nil, err
	}
	s.front = api.New(api.Config{Store: s.store, Checks: s.checks(), RiverUI: ui, Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), Log: a.log, Version: version()})
	return s, nil
}

// checks are what /readyz asks.
func (s *service) checks() []api.Check {
	return []api.Check{
		{Name: "postgres", Run: s.store.Pool().Ping},
		{Name: "migrations", Run: func(ctx context.Context) error {
			return migrations.Check(ctx, s.store.Pool(), s.store.Schema())
		}},
		{Name: "executor", Run: func(context.Context) error {
			if !s.ready.Load() {
				return errors.New("it does not take runs now")
			}
			return nil
		}},
		{Name: "reaper", Run: func(ctx context.Context) error {
			last, now, err := s.store.LastPass(ctx)
			if err == nil && now.Sub(last) > reaperLate {
				err = fmt.Errorf("no executor has looked for dead ones since %s", last.UTC().Format(time.RFC3339))
			}
			return err
		}},
	}
}

func (a *app) executorConfig(cfg serving, place string) jobs.Config {
	c := jobs.DefaultConfig()
	c.Queues, c.Workers, c.Grace, c.PollOnly = cfg.Queues, cfg.Workers, cfg.Grace, cfg.PollOnly
	c.Machine, c.Version, c.PID = place, version(), os.Getpid()
	c.Hostname, _ = os.Hostname() // it is for people only
	return c
}

// localProvider hides from processes what would let them out: the database
// and our own files.
func (a *app) localProvider(ctx context.Context, cfg isolation, root, place string, db *database) (*local.Provider, error) {
	hide := []string{filepath.Dir(root)}
	if db != nil && db.server != nil {
		hide = append(hide, db.server.Dir())
	}
	for _, path := range cfg.Hide {
		hide = append(hide, expandHome(path))
	}
	return local.New(ctx, local.Config{
		Root: root, Machine: place, Isolation: local.Mode(cfg.Isolation), Path: searchPath(), Hide: hide,
		Limits: local.Limits{MemoryBytes: cfg.Memory, CPUs: cfg.CPUs, PIDs: cfg.PIDs}, Log: a.log,
	})
}

// serve works until ctx ends, and then lets go in order: of the runs first,
// while requests are still answered, then of the listener. The pool is its
// caller's.
func (s *service) serve(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	frontCtx, closeFront := context.WithCancel(context.WithoutCancel(ctx))
	defer closeFront()
	served := make(chan error, 1)
	go func() {
		err := api.Serve(frontCtx, s.listener, s.front, s.log)
		fail(err)
		served <- err
	}()
	worked := s.work(ctx)
	closeFront()
	return errors.Join(worked, <-served)
}

// work runs executors, one after the other, until ctx ends. The first one
// tells what is wrong with the configuration; after that, trouble passes.
func (s *service) work(ctx context.Context) error {
	for first := true; ; first = false {
		err := s.executor.Run(ctx)
		switch {
		case ctx.Err() != nil && errors.Is(err, runs.ErrFenced):
			return nil // it has let go of everything
		case ctx.Err() != nil:
			return err
		case first && !errors.Is(err, runs.ErrFenced) && !errors.Is(err, jobs.ErrNotStarted) && !passes(err):
			return err
		}
		s.log.Warn().Err(err).Msg("the executor goes on under a fresh id")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}
