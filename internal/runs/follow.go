package runs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"time"

	"executor/internal/faults"
	"executor/internal/harness"
	"executor/internal/sandbox"
)

// limit is a step's time limit.
type limit struct {
	left  time.Duration
	over  bool // when we came
	fault error
}

// seenEnded is how long it may take to see that an adopted process has ended:
// nobody may have followed it when it did, in time, and now its limit is over.
const seenEnded = time.Second

func limitOf(step Step, startedAt, now time.Time, adopted bool) *limit {
	if step.Timeout == 0 {
		return nil
	}
	timeout := time.Duration(step.Timeout)
	left := startedAt.Add(timeout).Sub(now)
	over := left <= 0
	if adopted {
		left = max(left, seenEnded)
	}
	return &limit{left, over, faults.Errorf(faults.Timeout, "the step's time limit of %s was reached", timeout)}
}

// errStopped marks an error of follow after which the process is seen stopped.
var errStopped = errors.New("the process was stopped")

// follow stores the output of the process and returns how it ended. When ctx
// or the limit ends first, the process is stopped, unless the executor only
// lets go of it.
func (x *execution) follow(ctx context.Context, box *sandbox.Sandbox, launch sandbox.Launch, from sandbox.Offsets, out *output, lim *limit) (sandbox.Exit, error) {
	type ending struct {
		exit sandbox.Exit
		err  error
	}
	// The process is followed while it is being stopped, too.
	followCtx, letGo := context.WithCancel(context.WithoutCancel(ctx))
	defer letGo()
	done := make(chan ending, 1)
	go func() {
		exit, err := box.Follow(followCtx, launch, from, out.write)
		done <- ending{exit, err}
	}()
	var timer <-chan time.Time
	if lim != nil {
		t := time.NewTimer(lim.left)
		defer t.Stop()
		timer = t.C
	}

	var cause error
	select {
	case e := <-done:
		if err := out.close(true); err != nil {
			return e.exit, err
		}
		if lim != nil && lim.over && e.err == nil && (e.exit.Signal == "SIGTERM" || e.exit.Signal == "SIGKILL") {
			// An earlier claim stopped it for its limit, and died before it
			// could say so.
			return sandbox.Exit{}, stopped{lim.fault}
		}
		return e.exit, e.err
	case <-timer:
		cause = lim.fault
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}

	if errors.Is(cause, ErrDraining) || errors.Is(cause, ErrFenced) {
		letGo()
		<-done
		if err := out.close(errors.Is(cause, ErrDraining)); err != nil {
			return sandbox.Exit{}, err
		}
		return sandbox.Exit{}, cause
	}
	stopErr := box.Stop(context.WithoutCancel(ctx), launch, x.spec.Grace())
	select {
	case <-done:
	case <-time.After(stopWait):
		letGo()
		<-done
	}
	if err := out.close(true); err != nil {
		return sandbox.Exit{}, err
	}
	if stopErr != nil {
		x.log.Warn().Err(stopErr).Str("step", launch.Step).Msg("the process cannot be stopped")
		return sandbox.Exit{}, cause
	}
	return sandbox.Exit{}, stopped{cause}
}

// stopped is a cause whose process is seen to be gone.
type stopped struct{ cause error }

func (s stopped) Error() string        { return s.cause.Error() }
func (s stopped) Unwrap() error        { return s.cause }
func (s stopped) Is(target error) bool { return target == errStopped }

// result is what a finished command yields.
func (x *execution) result(ctx context.Context, box *sandbox.Sandbox, step Step, exit sandbox.Exit, out *output) (json.RawMessage, error) {
	if err := harness.ExitFault(exit.Code, exit.Signal); err != nil {
		return nil, err
	}
	if step.ResultFile == "" {
		return harness.LastJSON(out.tail.bytes()), nil
	}
	file, err := box.Download(ctx, step.ResultFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, faults.New(faults.InvalidOutput, "result_file", err)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, harness.MaxResult+1))
	if err != nil {
		return nil, err
	}
	return harness.FileResult(content)
}
