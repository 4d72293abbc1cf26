package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

// Config of an executor. Start from DefaultConfig.
type Config struct {
	Queues      []string
	PollOnly    bool          // no LISTEN and no session: for a proxy that pools transactions
	Workers     int           // runs at the same time, per queue
	Beat        time.Duration // between two signs of life
	Lease       time.Duration // an executor silent for longer is dead
	SessionGone time.Duration // so is one whose database session has been gone for as long, and that was silent meanwhile
	Watch       time.Duration // between two looks for cancels and fences
	Reap        time.Duration // between two passes of the reaper
	ReapHosts   time.Duration // between two looks for abandoned hosts
	Sweep       time.Duration // between two looks for hosts that the ledger does not know
	HostGrace   time.Duration // after a run's end, before the reaper releases what its worker has not
	CreateGrace time.Duration // for a create without an answer to show what it made
	Homecoming  time.Duration // for a machine without an executor to get one, before its hosts count as gone
	CrashBudget int           // crashes in a row under a run before it is given up
	Grace       time.Duration // for letting go of everything at the end
	Machine     string        // which local hosts can be reached
	Hostname    string
	Version     string
	PID         int
}

// DefaultConfig is what serve uses when nobody says otherwise.
func DefaultConfig() Config {
	return Config{
		Queues:      []string{river.QueueDefault},
		Workers:     50,
		Beat:        2 * time.Second,
		Lease:       14 * time.Second, // noticed within 15: a pass comes every second
		SessionGone: 3 * time.Second,
		Watch:       time.Second,
		Reap:        time.Second,
		ReapHosts:   10 * time.Second,
		Sweep:       time.Minute,
		HostGrace:   30 * time.Second,
		CreateGrace: sandbox.DefaultTimeouts().Create,
		Homecoming:  2 * time.Minute,
		CrashBudget: 3,
		Grace:       30 * time.Second,
	}
}

// misplaced is how long a run of ours may be missing from the working set
// before it is handed back.
const misplaced = 10 * time.Second

// ErrNotStarted: River could not begin, and Postgres did not say why. The
// configuration is not it, which is checked before; River has no type for a
// connection that is too slow for it.
var ErrNotStarted = errors.New("no start on this connection")

// Executor works on runs under one id until it is told to stop or is fenced
// off.
type Executor struct {
	Config    Config
	Store     *runs.Store
	Runner    *runs.Runner
	Sandboxes *sandbox.Client
	Metrics   *Metrics
	Log       zerolog.Logger
	Ready     func(ready bool) // told when claiming begins and ends; may be nil
}

// Run works until ctx ends, which is nil after everything was let go of, or
// until the executor is fenced off, which is runs.ErrFenced: call it again to
// go on under a fresh id. So it is after ErrNotStarted.
func (e *Executor) Run(ctx context.Context) error {
	id := uuid.New()
	log := e.Log.With().Stringer("executor_id", id).Logger()
	if err := e.Store.CheckRiver(ctx); err != nil {
		return err
	}
	if err := e.Store.Register(ctx, runs.ExecutorInfo{ID: id, Machine: e.Config.Machine, Hostname: e.Config.Hostname, Version: e.Config.Version, PID: e.Config.PID}); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	set := newWorkingSet(e.Metrics.working)
	config := clientConfig(e.Store.Schema(), &worker{id: id, store: e.Store, runner: e.Runner, work: set, metrics: e.Metrics, log: log}, log)
	config.ID = id.String()
	config.PollOnly = e.Config.PollOnly
	config.FetchCooldown = 10 * time.Millisecond
	config.Queues = map[string]river.QueueConfig{}
	machine, err := e.Store.MachineQueue(ctx, e.Config.Machine)
	if err != nil {
		return err
	}
	for _, q := range append([]string{machine}, e.Config.Queues...) {
		config.Queues[q] = river.QueueConfig{MaxWorkers: e.Config.Workers}
	}
	client, err := river.NewClient(riverpgxv5.New(e.Store.Pool()), config)
	if err != nil {
		return fmt.Errorf("river: %w", err)
	}
	// River lives until it is stopped below, in order.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		var said *pgconn.PgError
		if !errors.As(err, &said) {
			err = errors.Join(ErrNotStarted, err)
		}
		return fmt.Errorf("river: %w", err)
	}
	log.Info().Strs("queues", e.Config.Queues).Int("workers", e.Config.Workers).Msg("executor started")
	e.ready(true)

	alive, die := context.WithCancelCause(ctx)
	defer die(nil)
	e.Metrics.lastBeat.SetToCurrentTime()
	life := &life{Executor: e, id: id, set: set, log: log}
	var loops errgroup.Group
	loops.Go(func() error { die(life.beat(alive)); return nil })
	if !e.Config.PollOnly {
		loops.Go(func() error { life.holdSession(alive); return nil })
	}
	loops.Go(func() error { life.watch(alive); return nil })
	loops.Go(func() error { life.reap(alive); return nil })
	<-alive.Done()
	fenced := errors.Is(context.Cause(alive), runs.ErrFenced)
	e.ready(false)
	defer loops.Wait()

	cause := runs.ErrDraining
	if fenced {
		cause = runs.ErrFenced
	}
	log.Info().AnErr("because", cause).Int("runs", len(set.list())).Msg("letting go of everything")
	set.endAll(cause)
	stopCtx, stopped := context.WithTimeout(context.WithoutCancel(ctx), e.Config.Grace)
	defer stopped()
	err = client.Stop(stopCtx)
	if fenced {
		return errors.Join(runs.ErrFenced, err)
	}
	if err != nil {
		return fmt.Errorf("some runs could not be let go of within %s; another executor takes them over: %w", e.Config.Grace, err)
	}
	if err := e.Store.Leave(stopCtx, id); err != nil {
		log.Warn().Err(err).Msg("did not sign off; the others wait for the lease")
	}
	log.Info().Msg("executor stopped")
	return nil
}

func (e *Executor) ready(ready bool) {
	if e.Ready != nil {
		e.Ready(ready)
	}
}
