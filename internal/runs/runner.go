package runs

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// The causes with which an executor ends the context of a run it works on.
var (
	// ErrCancelled: somebody asked for the end of the run.
	ErrCancelled = errors.New("the run is cancelled")
	// ErrDraining: the executor leaves; the processes go on.
	ErrDraining = errors.New("the executor is draining")
)

// stopWait is how long the end of a stopped process may take to be read, after
// its tree was seen to be gone.
const stopWait = 5 * time.Second

// Runner works on claimed runs. It knows nothing of jobs: what becomes of a
// fault is decided by its caller, with the one exception of a composite
// step's members, which are retried here because the others still run.
type Runner struct {
	Store     *Store
	Sandboxes *sandbox.Client
	Provider  string // of a spec that names none
	Machine   string // whose local hosts can be reached
	OutputCap int64  // bytes kept of each stream of a process; half of them its head, half its tail
	Log       zerolog.Logger
	Now       func() time.Time
	Jitter    func() float64 // in [0,1)
}

// StepError is a fault with the place where it happened.
type StepError struct {
	Err  error         // a fault; an error without a kind reads as internal
	Exit *sandbox.Exit // how the process ended, where it did

	Earlier []*faults.Kind // what ended the failed attempts of this place before, in this round

	place    place
	attempt  int  // 0: none was begun
	recorded bool // the attempt's end is in the store
	final    bool // a member's retries are over: the run cannot succeed
}

// Error names the place.
func (e *StepError) Error() string { return e.place.prefix() + e.Err.Error() }

// Unwrap returns the fault.
func (e *StepError) Unwrap() error { return e.Err }

// Fault is the fault.
func (e *StepError) Fault() *faults.Fault { return faults.Of(e.Err) }

// Message is what failure_message says beside the code; never empty.
func (e *StepError) Message() string {
	text := e.Err.Error()
	if fault, ok := e.Err.(*faults.Fault); ok {
		text = fault.Detail()
		if text == "" {
			text = fault.Kind.Doc()
		}
	}
	if text = clip(sanitizeText(e.place.prefix()+text), 4000); text == "" {
		return "no message"
	}
	return text
}

// Run works on the run until all its steps are done, which is nil; until a
// step fails, which is a *StepError; or until ctx ends, which is its cause.
// Processes live on after ErrDraining and ErrFenced.
func (r *Runner) Run(ctx context.Context, c *Claim) (err error) {
	if c.Cancel {
		return ErrCancelled
	}
	spec, err := c.Spec()
	if err != nil {
		return &StepError{Err: err}
	}
	if spec.Timeout > 0 {
		limit := faults.Errorf(faults.Timeout, "the run's time limit of %s was reached", time.Duration(spec.Timeout))
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.StartedAt.Add(time.Duration(spec.Timeout)).Sub(r.Now()), limit)
		defer cancel()
	}
	x := &execution{Runner: r, claim: c, spec: spec, ledger: r.Store.Ledger(c, r.Machine), log: r.Log.With().Stringer("run_id", c.RunID).Int64("epoch", c.Epoch).Logger()}
	defer x.hangUp()
	for i, step := range spec.Steps {
		if c.history.steps[step.Name] == Succeeded {
			continue
		}
		if err := x.step(ctx, i, step); err != nil {
			return err
		}
	}
	return nil
}

// PanicFault is what a panic amounts to: a bug of ours.
func PanicFault(v any) *faults.Fault {
	return faults.Errorf(faults.Internal, "panic: %v\n%s", v, debug.Stack())
}

// releaseHostOf releases the host of one place, unless its process may live.
func (r *Runner) releaseHostOf(ctx context.Context, c *Claim, key sandbox.Key) {
	hosts, err := r.Store.hostsOf(ctx, c.RunID, false)
	if err != nil {
		r.Log.Warn().Err(err).Stringer("run_id", c.RunID).Msg("a host is left for later")
	}
	for _, host := range hosts {
		if host.Key == key {
			r.Sandboxes.Release(ctx, r.Store.Ledger(c, r.Machine), host)
		}
	}
}

// Release gives back the hosts of the run that are not needed for what comes.
// With ended, the run is over: all of them. Otherwise the hosts whose process
// may still live are kept. What cannot be deleted stays in the ledger for the
// reaper.
func (r *Runner) Release(ctx context.Context, c *Claim, ended bool) {
	hosts, err := r.Store.hostsOf(ctx, c.RunID, ended)
	if err != nil {
		r.Log.Warn().Err(err).Stringer("run_id", c.RunID).Msg("hosts are left to the reaper")
		return
	}
	ledger := r.Store.Ledger(c, r.Machine)
	for _, host := range hosts {
		r.Sandboxes.Release(ctx, ledger, host)
	}
}

// StopAll makes sure that no process of the run lives: each is seen stopped,
// or its host deleted. It is what stands before a run is cancelled.
func (r *Runner) StopAll(ctx context.Context, c *Claim) error {
	launches, err := r.Store.openLaunches(ctx, c)
	if err != nil {
		return err
	}
	grace := defaultStopGrace
	if spec, err := c.Spec(); err == nil {
		grace = spec.Grace()
	}
	var failed []error
	for _, l := range launches {
		if err := r.stop(ctx, c, l, grace); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// stop stops one process from outside, or deletes its host.
func (r *Runner) stop(ctx context.Context, c *Claim, l openLaunch, grace time.Duration) error {
	ledger := r.Store.Ledger(c, r.Machine)
	box, err := r.Sandboxes.Attach(ctx, ledger, l.host)
	if err == nil {
		defer box.Close()
		if err = box.Stop(ctx, l.launch(c), grace); err == nil {
			return r.Store.endLaunch(ctx, c, l.place, l.n, nil)
		}
	}
	if errors.Is(err, faults.SandboxNotFound) {
		return r.Store.endLaunch(ctx, c, l.place, l.n, nil)
	}
	r.Log.Warn().Err(err).Stringer("run_id", c.RunID).Str("step", l.place.step).Msg("a process cannot be stopped; deleting its host")
	return r.Sandboxes.Delete(ctx, ledger, l.host)
}
