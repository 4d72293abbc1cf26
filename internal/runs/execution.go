package runs

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/harness"
	"executor/internal/sandbox"
)

// execution is one claim of a run at work.
type execution struct {
	*Runner
	claim  *Claim
	spec   Spec
	ledger sandbox.Ledger
	log    zerolog.Logger
	kept   *sandbox.Sandbox // the open connection to a host that is kept across steps
}

func (x *execution) hangUp() {
	if x.kept != nil {
		_ = x.kept.Close()
	}
}

func (x *execution) step(ctx context.Context, i int, step Step) error {
	if step.Parallel != nil {
		return x.composite(ctx, i, step)
	}
	p := place{step: step.Name, position: i}
	if failed := x.undecided(p); failed != nil {
		return failed
	}
	return x.try(ctx, p, step)
}

// undecided is the failure of a place that an earlier claim recorded and died
// before anything was decided about it.
func (x *execution) undecided(p place) *StepError {
	last, ok := x.claim.history.lastAttempt(p.step, p.member)
	if !ok || last.code == "" || last.retryAt != nil || last.round != x.claim.Round {
		return nil
	}
	earlier := x.claim.history.earlier(p.step, p.member, x.claim.Round)
	kind := earlier[len(earlier)-1]
	return &StepError{
		Err:     faults.New(kind, "", errors.New(strings.TrimPrefix(last.message, last.code+": "))),
		Earlier: earlier[:len(earlier)-1], place: p, attempt: last.n, recorded: true,
	}
}

// try makes one attempt at a place, or goes on with the open one of an earlier
// claim.
func (x *execution) try(ctx context.Context, p place, step Step) error {
	if ctx.Err() != nil {
		return x.ended(ctx, p, step)
	}
	attempt := 1
	if last, ok := x.claim.history.lastAttempt(p.step, p.member); ok {
		attempt = last.n
		if !last.open {
			attempt++
		}
	}
	if err := x.Store.beginAttempt(ctx, x.claim, p, attempt); err != nil {
		return err
	}
	failed := func(err error) *StepError {
		return &StepError{Err: err, place: p, attempt: attempt, Earlier: x.claim.history.earlier(p.step, p.member, x.claim.Round)}
	}
	box, err := x.ready(ctx, p, step)
	if err != nil {
		return x.judge(ctx, failed(err))
	}
	if box != x.kept {
		defer box.Close()
	}
	if err := x.run(ctx, box, p, step, attempt, failed); err != nil {
		return err
	}
	if !x.spec.Kept() {
		x.Sandboxes.Release(ctx, x.ledger, box.Entry())
	}
	return nil
}

// ended is what the end of ctx before an attempt means: the run's own time
// limit is a failure of the step it meets, everything else concerns the run.
func (x *execution) ended(ctx context.Context, p place, step Step) error {
	return x.judge(ctx, &StepError{Err: context.Cause(ctx), place: p, Earlier: x.claim.history.earlier(p.step, p.member, x.claim.Round)})
}

// judge tells a failure of the step from the end of the claim: what our own
// context caused is no fault.
func (x *execution) judge(ctx context.Context, e *StepError) error {
	for _, claim := range []error{ErrFenced, ErrCancelled, ErrDraining} {
		if errors.Is(e.Err, claim) {
			return claim
		}
	}
	if ctx.Err() != nil && !faults.Classified(e.Err) {
		return context.Cause(ctx)
	}
	return e
}

// acquire opens the sandbox of a place: its own, or the one the run keeps.
func (x *execution) acquire(ctx context.Context, p place) (*sandbox.Sandbox, error) {
	if x.kept != nil {
		return x.kept, nil
	}
	spec := sandbox.HostSpec{Key: x.hostKey(p), RunID: x.claim.RunID.String(), Network: !x.spec.Offline}
	provider := x.spec.Provider
	if provider == "" {
		provider = x.Provider
	}
	box, err := x.Sandboxes.Acquire(ctx, x.ledger, provider, spec)
	if err == nil && x.spec.Kept() && p.member == "" {
		x.kept = box
	}
	return box, err
}

// hostKey is the same at every attempt.
func (x *execution) hostKey(p place) sandbox.Key {
	run := x.claim.RunID.String()
	switch {
	case x.spec.Kept():
		return sandbox.KeptKey(run)
	case p.member != "":
		return sandbox.MemberKey(run, p.step, p.member)
	}
	return sandbox.StepKey(run, p.step)
}

// run starts the place's process in the sandbox, or finds the one that is
// there, and follows it to its end.
func (x *execution) run(ctx context.Context, box *sandbox.Sandbox, p place, step Step, attempt int, failed func(error) *StepError) error {
	n, from, reattach := 1, sandbox.Offsets{}, false
	var startedAt time.Time
	if last, ok := x.claim.history.lastLaunch(p.step, p.member); ok {
		n = last.n + 1
		if last.open && last.host == box.Entry().ID {
			n, from, reattach = last.n, sandbox.Offsets{Stdout: last.stdout, Stderr: last.stderr}, true
			if last.startedAt != nil {
				startedAt = *last.startedAt
			}
		}
	}
	launch := sandbox.Launch{RunID: x.claim.RunID.String(), Step: p.step, Member: p.member, N: n}
	// Files first: a launch that is recorded has them, and must not get them
	// again under its running process.
	if !reattach {
		if err := x.upload(ctx, box, step.Files); err != nil {
			return x.judge(ctx, failed(err))
		}
	}
	if err := x.Store.recordLaunch(ctx, x.claim, p, n, box.Entry().ID); err != nil {
		return err
	}
	env := maps.Clone(x.spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, step.Env)
	process, err := box.Start(ctx, launch, sandbox.Command{
		Argv: harness.Argv(step.Argv, step.Shell), Env: env, Dir: step.Dir, Stdin: []byte(step.Stdin),
	})
	if err != nil {
		return x.launchFailed(ctx, p, n, nil, failed(err))
	}
	if startedAt.IsZero() {
		startedAt = process.StartedAt
		if err := x.Store.launchStarted(ctx, x.claim, p, n, startedAt); err != nil {
			return err
		}
	}
	x.log.Debug().Str("step", p.step).Str("member", p.member).Int("attempt", attempt).Bool("reattached", process.Adopted).Msg("process runs")

	out, err := newOutput(ctx, x.Store, x.claim, p, n, from, x.OutputCap)
	if err != nil {
		return err
	}
	exit, err := x.follow(ctx, box, launch, from, out, limitOf(step, startedAt, x.Now(), process.Adopted))
	if err != nil {
		return x.launchFailed(ctx, p, n, nil, failed(err))
	}
	result, err := x.result(ctx, box, step, exit, out)
	if err != nil {
		return x.launchFailed(ctx, p, n, &exit, failed(err))
	}
	return x.Store.succeeded(ctx, x.claim, p, attempt, n, exit, result)
}

// launchFailed records the end of a launch that failed, where it has one (how
// the process ended, or that none can be alive), and with it that the attempt
// failed: a command that ended badly is not run again because we die before
// anybody decides.
func (x *execution) launchFailed(ctx context.Context, p place, n int, exit *sandbox.Exit, e *StepError) error {
	e.Exit = exit
	err := x.judge(ctx, e)
	if exit == nil && !launchOver(e.Err) {
		return err
	}
	var failed *StepError
	if !errors.As(err, &failed) {
		return errors.Join(x.Store.endLaunch(ctx, x.claim, p, n, exit), err)
	}
	if err := x.Store.launchFailed(ctx, x.claim, failed, n); err != nil {
		return err
	}
	failed.recorded = true
	return failed
}

// launchOver reports whether a failed start or follow leaves no process
// behind: it never was, it is gone, or we stopped it.
func launchOver(err error) bool {
	var f *faults.Fault
	return errors.Is(err, faults.SandboxLost) || errors.Is(err, faults.SandboxNotFound) || errors.Is(err, errStopped) ||
		errors.As(err, &f) && f.Outcome == faults.NotStarted
}

func (x *execution) upload(ctx context.Context, box *sandbox.Sandbox, files []File) error {
	for _, f := range files {
		content, err := f.Bytes()
		if err != nil {
			return faults.New(faults.InvalidSpec, "file "+f.Path, err)
		}
		mode := fs.FileMode(0o644)
		if f.Executable {
			mode = 0o755
		}
		if err := box.Upload(ctx, path.Clean(f.Path), mode, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return nil
}
