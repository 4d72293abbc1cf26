package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/runs"
)

const (
	keepHostFor   = 120 * time.Second // a host is not kept over a longer wait
	stopTimeout   = 2 * time.Minute   // for making sure that no process of a cancelled run lives
	stopRetry     = 10 * time.Second  // until the next try where that failed
	claimPause    = time.Second       // between tries to claim while Postgres is away
	releaseBudget = 5 * time.Minute
)

// worker carries out the deliveries of one executor.
type worker struct {
	river.WorkerDefaults[Args]

	id      uuid.UUID
	store   *runs.Store
	runner  *runs.Runner
	work    *workingSet
	metrics *Metrics
	log     zerolog.Logger
}

// Timeout lets a run take as long as it takes; its limits are the spec's.
func (w *worker) Timeout(*river.Job[Args]) time.Duration { return -1 }

// Work carries a run from its claim to where it ends, waits or is handed over.
func (w *worker) Work(ctx context.Context, job *river.Job[Args]) error {
	claim, err := w.claim(ctx, job)
	if claim == nil {
		return err
	}
	runCtx, done := w.work.add(ctx, claim)
	defer done()
	log := w.log.With().Stringer("run_id", claim.RunID).Int64("job_id", claim.JobID).Int64("epoch", claim.Epoch).Logger()
	log.Info().Msg("run claimed")
	return w.settle(ctx, claim, w.run(runCtx, claim), log)
}

// claim makes the run ours. Without a claim, the job has nothing to do, or
// goes back to where it was.
func (w *worker) claim(ctx context.Context, job *river.Job[Args]) (*runs.Claim, error) {
	for {
		if w.work.isDraining() {
			return nil, river.JobSnooze(0)
		}
		claim, verdict, err := w.store.Claim(ctx, job.Args.RunID, job.ID, w.id)
		if err == nil && claim == nil {
			w.log.Info().Stringer("run_id", job.Args.RunID).Int64("job_id", job.ID).Msg("the job has nothing to do")
			if verdict == runs.Stale {
				// If River has given the job to somebody else by now, a snooze does
				// no more than to offer it once too often; completing it would end
				// it under him.
				return nil, river.JobSnooze(0)
			}
			return nil, nil
		}
		if err == nil {
			return claim, nil
		}
		w.log.Warn().Err(err).Stringer("run_id", job.Args.RunID).Msg("cannot claim; trying again")
		select {
		case <-ctx.Done():
			return nil, river.JobSnooze(0)
		case <-time.After(claimPause):
		}
	}
}

// run keeps a panic from losing the run.
func (w *worker) run(ctx context.Context, claim *runs.Claim) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = runs.PanicFault(v)
		}
	}()
	return w.runner.Run(ctx, claim)
}

// settle writes what became of the run and says it to River.
func (w *worker) settle(ctx context.Context, claim *runs.Claim, err error, log zerolog.Logger) error {
	ctx = context.WithoutCancel(ctx)
	switch {
	case err == nil:
		return w.end(ctx, claim, log, runs.Succeeded, "", w.store.Succeed(ctx, claim))
	case errors.Is(err, runs.ErrFenced):
		log.Warn().Err(err).Msg("fenced off; somebody else goes on with the run")
		return nil
	case errors.Is(err, runs.ErrDraining):
		err := w.store.HandBack(ctx, claim, "handed back: executor "+w.id.String()+" is draining")
		if errors.Is(err, runs.ErrCancelled) {
			return w.cancel(ctx, claim, log)
		}
		if err != nil {
			log.Warn().Err(err).Msg("not handed back; left to the reaper")
			return nil
		}
		log.Info().Msg("run handed back")
		return nil
	case errors.Is(err, runs.ErrCancelled):
		return w.cancel(ctx, claim, log)
	}
	var failed *runs.StepError
	if !errors.As(err, &failed) {
		failed = &runs.StepError{Err: err}
	}
	return w.decide(ctx, claim, failed, log)
}

// decide is the one switch from a fault to a snooze or a discard.
func (w *worker) decide(ctx context.Context, claim *runs.Claim, failed *runs.StepError, log zerolog.Logger) error {
	fault := failed.Fault()
	spec, _ := claim.Spec() // one that does not parse has no overrides
	d := faults.Decide(fault, failed.Earlier, spec.Overrides(), w.runner.Now(), w.runner.Jitter())
	log = log.With().Str("failure_code", fault.Kind.Code()).Logger()
	if errors.Is(fault, faults.Internal) {
		log.Error().Err(failed.Err).Any("chain", faults.Chain(failed.Err)).Msg("a bug of the executor")
	}
	if !d.Retry {
		log.Info().Err(failed.Err).Str("because", d.Reason).Msg("giving up")
		return w.fail(ctx, claim, failed, log)
	}
	if !spec.Kept() || d.FreshHost || d.Delay >= keepHostFor || errors.Is(fault, faults.SandboxNotFound) {
		w.runner.Release(ctx, claim, false)
	}
	err := w.store.BackOff(ctx, claim, failed, w.runner.Now().Add(d.Delay))
	switch {
	case errors.Is(err, runs.ErrCancelled):
		return w.cancel(ctx, claim, log)
	case errors.Is(err, runs.ErrFenced):
		return nil
	case err != nil:
		log.Error().Err(err).Msg("the fault cannot be recorded")
		return w.fail(ctx, claim, &runs.StepError{Err: err}, log)
	}
	w.metrics.backedOff.WithLabelValues(fault.Kind.Code()).Inc()
	log.Info().Err(failed.Err).Dur("delay", d.Delay).Msg("backing off")
	return river.JobSnooze(d.Delay)
}

func (w *worker) fail(ctx context.Context, claim *runs.Claim, failed *runs.StepError, log zerolog.Logger) error {
	err := w.store.Fail(ctx, claim, failed)
	if err != nil && !errors.Is(err, runs.ErrFenced) {
		log.Error().Err(err).Msg("the failure cannot be recorded as it is")
		err = w.store.Fail(ctx, claim, &runs.StepError{Err: faults.Errorf(faults.Internal, "the failure could not be recorded; the executor's log has it")})
	}
	return w.end(ctx, claim, log, runs.Failed, failed.Fault().Kind.Code(), err)
}

// cancel ends the run once none of its processes can be alive.
func (w *worker) cancel(ctx context.Context, claim *runs.Claim, log zerolog.Logger) error {
	stopCtx, stopped := context.WithTimeout(ctx, stopTimeout)
	defer stopped()
	if err := w.runner.StopAll(stopCtx, claim); err != nil && !errors.Is(err, runs.ErrFenced) {
		log.Warn().Err(err).Msg("a process of the cancelled run may still live; trying again")
		if err := w.store.PutOff(ctx, claim, faults.Of(err).Kind, w.runner.Now().Add(stopRetry)); err != nil {
			return nil
		}
		return river.JobSnooze(stopRetry)
	}
	return w.end(ctx, claim, log, runs.Cancelled, "", w.store.Cancelled(ctx, claim))
}

// end releases the hosts of a run that has ended. Its job is final already.
func (w *worker) end(ctx context.Context, claim *runs.Claim, log zerolog.Logger, to runs.Status, code string, err error) error {
	if err != nil {
		log.Warn().Err(err).Msg("the end of the run is not ours to write, or cannot be written")
		return nil
	}
	w.metrics.ended.WithLabelValues(string(to), code).Inc()
	log.Info().Msg("run " + string(to))
	ctx, cancel := context.WithTimeout(ctx, releaseBudget)
	defer cancel()
	w.runner.Release(ctx, claim, true)
	return nil
}

// causeOf translates why River ends a worker's context.
func causeOf(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), rivertype.ErrJobCancelledRemotely) {
		return runs.ErrCancelled
	}
	return runs.ErrDraining
}
