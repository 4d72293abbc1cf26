package runs

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// place names a step, or one member of a composite step, within its run.
type place struct {
	step     string
	position int
	member   string // empty: the step itself
}

// prefix names the place in front of a message; empty for the run itself.
func (p place) prefix() string {
	switch {
	case p.step == "":
		return ""
	case p.member == "":
		return "step " + p.step + ": "
	}
	return "step " + p.step + ", " + p.member + ": "
}

// beginAttempt opens attempt n of a place, or takes over the open one of an
// earlier claim. Nothing begins once the end of the run was asked for, though
// its worker may not have heard of it: ErrCancelled.
func (s *Store) beginAttempt(ctx context.Context, c *Claim, p place, n int) error {
	return s.persist(ctx, "begin attempt", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		s.queueUnlessCancelled(b, c)
		b.Queue(s.q(`
			INSERT INTO executor.run_steps (run_id, name, position) VALUES ($1, $2, $3)
			ON CONFLICT DO NOTHING`), c.RunID, p.step, p.position)
		b.Queue(s.q(`
			INSERT INTO executor.run_attempts (run_id, step, member, n, round, epoch, executor_id)
			VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (run_id, step, member, n) DO UPDATE SET epoch = $6, executor_id = $7`),
			c.RunID, p.step, p.member, n, c.Round, c.Epoch, c.ExecutorID)
		return s.batch(ctx, b)
	})
}

// recordLaunch writes launch n of a place before it is made, or takes over the
// one that exists, so that this claim follows its streams. ErrCancelled as in
// beginAttempt.
func (s *Store) recordLaunch(ctx context.Context, c *Claim, p place, n int, host int64) error {
	return s.persist(ctx, "record launch", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		s.queueUnlessCancelled(b, c)
		// A launch whose host is gone has ended with it.
		b.Queue(s.q(`
			UPDATE executor.run_launches AS l SET ended_at = now()
			FROM executor.sandbox_hosts AS h
			WHERE (l.run_id, l.step, l.member) = ($1, $2, $3) AND l.n < $4 AND l.ended_at IS NULL
			  AND h.id = l.host AND h.state = 'released'`), c.RunID, p.step, p.member, n)
		b.Queue(s.q(`
			INSERT INTO executor.run_launches (run_id, step, member, n, host) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (run_id, step, member, n) DO NOTHING`), c.RunID, p.step, p.member, n, host)
		b.Queue(s.q(`
			INSERT INTO executor.run_streams (run_id, step, member, launch, stream, epoch)
			VALUES ($1, $2, $3, $4, 'stdout', $5), ($1, $2, $3, $4, 'stderr', $5)
			ON CONFLICT (run_id, step, member, launch, stream) DO UPDATE SET epoch = $5`),
			c.RunID, p.step, p.member, n, c.Epoch)
		return s.batch(ctx, b)
	})
}

// launchStarted records when the process started, by its host's clock. The
// first answer stays.
func (s *Store) launchStarted(ctx context.Context, c *Claim, p place, n int, at time.Time) error {
	return s.persist(ctx, "record start", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		b.Queue(s.q(`
			UPDATE executor.run_launches SET started_at = coalesce(started_at, $5)
			WHERE (run_id, step, member, n) = ($1, $2, $3, $4)`), c.RunID, p.step, p.member, n, at)
		return s.batch(ctx, b)
	})
}

// endLaunch records that a launch was seen to end, or be stopped.
func (s *Store) endLaunch(ctx context.Context, c *Claim, p place, n int, exit *sandbox.Exit) error {
	return s.persist(ctx, "end launch", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		s.queueLaunchEnd(b, c, p, n, exit)
		return s.batch(ctx, b)
	})
}

func (s *Store) queueLaunchEnd(b *pgx.Batch, c *Claim, p place, n int, exit *sandbox.Exit) {
	code, signal := exitColumns(exit)
	b.Queue(s.q(`
		UPDATE executor.run_launches
		SET ended_at = coalesce(ended_at, now()), exit_code = coalesce(exit_code, $5), exit_signal = coalesce(exit_signal, $6)
		WHERE (run_id, step, member, n) = ($1, $2, $3, $4)`), c.RunID, p.step, p.member, n, code, signal)
}

// succeeded checkpoints a place: its attempt and launch, and the step itself
// unless the place is only a member of it.
func (s *Store) succeeded(ctx context.Context, c *Claim, p place, attempt, launch int, exit sandbox.Exit, result json.RawMessage) error {
	return s.persist(ctx, "finish step", func(ctx context.Context) error {
		b := &pgx.Batch{}
		// Before the fence: two members that held its lock would both wait to
		// make it a stronger one.
		b.Queue(s.q(`UPDATE executor.runs SET crashes = 0 WHERE id = $1 AND crashes > 0`), c.RunID)
		s.queueFence(b, c)
		code, signal := exitColumns(&exit)
		b.Queue(s.q(`
			UPDATE executor.run_attempts
			SET ended_at = now(), outcome = 'succeeded', exit_code = $5, exit_signal = $6
			WHERE (run_id, step, member, n) = ($1, $2, $3, $4) AND ended_at IS NULL`),
			c.RunID, p.step, p.member, attempt, code, signal)
		s.queueLaunchEnd(b, c, p, launch, &exit)
		if p.member == "" {
			s.queueStepEnd(b, c, p.step, Succeeded, result)
		}
		return s.batch(ctx, b)
	})
}

// stepSucceeded checkpoints a composite step whose members have all finished.
func (s *Store) stepSucceeded(ctx context.Context, c *Claim, step string) error {
	return s.persist(ctx, "finish step", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		s.queueStepEnd(b, c, step, Succeeded, nil)
		return s.batch(ctx, b)
	})
}

func (s *Store) queueStepEnd(b *pgx.Batch, c *Claim, step string, to Status, result json.RawMessage) {
	var text *string
	if result != nil {
		t := sanitizeJSON(result)
		text = &t
	}
	b.Queue(s.q(`
		UPDATE executor.run_steps SET status = $3, finished_at = now(), result = $4
		WHERE run_id = $1 AND name = $2 AND status = 'running'`), c.RunID, step, to, text)
}

// attemptFailed records a member's failed attempt and when it is tried again.
func (s *Store) attemptFailed(ctx context.Context, c *Claim, f *StepError, retryAt time.Time) error {
	return s.persist(ctx, "record attempt", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		if err := s.queueAttemptFailed(b, c, f, retryAt); err != nil {
			return err
		}
		return s.batch(ctx, b)
	})
}

// launchFailed records in one that a launch has ended and that its attempt
// failed. What comes of it is decided after.
func (s *Store) launchFailed(ctx context.Context, c *Claim, f *StepError, launch int) error {
	return s.persist(ctx, "record failure", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		s.queueLaunchEnd(b, c, f.place, launch, f.Exit)
		if err := s.queueAttemptFailed(b, c, f, time.Time{}); err != nil {
			return err
		}
		return s.batch(ctx, b)
	})
}

// queueAttemptFailed writes how the attempt behind f ended, and when the next
// one is; of an attempt that is recorded already, only the latter.
func (s *Store) queueAttemptFailed(b *pgx.Batch, c *Claim, f *StepError, retryAt time.Time) error {
	if f.attempt == 0 {
		return nil
	}
	if f.recorded {
		b.Queue(s.q(`
			UPDATE executor.run_attempts SET retry_at = $5
			WHERE (run_id, step, member, n) = ($1, $2, $3, $4)`),
			c.RunID, f.place.step, f.place.member, f.attempt, timeOrNull(retryAt))
		return nil
	}
	causes, err := asJSON(faults.Chain(f.Err))
	if err != nil {
		return err
	}
	code, signal := exitColumns(f.Exit)
	b.Queue(s.q(`
		UPDATE executor.run_attempts
		SET ended_at = now(), outcome = 'failed', failure_code = $5, causes = $6, exit_code = $7, exit_signal = $8, retry_at = $9
		WHERE (run_id, step, member, n) = ($1, $2, $3, $4) AND ended_at IS NULL`),
		c.RunID, f.place.step, f.place.member, f.attempt, f.Fault().Kind.Code(), causes, code, signal, timeOrNull(retryAt))
	return nil
}

// queueAttemptsClosed ends what is still open of a run that ends.
func (s *Store) queueAttemptsClosed(b *pgx.Batch, c *Claim, step, attempt string) {
	b.Queue(s.q(`
		UPDATE executor.run_attempts SET ended_at = now(), outcome = $2
		WHERE run_id = $1 AND ended_at IS NULL`), c.RunID, attempt)
	b.Queue(s.q(`
		UPDATE executor.run_steps SET status = $2, finished_at = now()
		WHERE run_id = $1 AND status = 'running'`), c.RunID, step)
}

func (s *Store) queueFence(b *pgx.Batch, c *Claim) {
	b.Queue(s.q(`SELECT executor.fence($1, $2)`), c.RunID, c.Epoch)
}

const unlessCancelled = `SELECT executor.refuse_if_cancelled($1)`

func (s *Store) queueUnlessCancelled(b *pgx.Batch, c *Claim) {
	b.Queue(s.q(unlessCancelled), c.RunID)
}

func exitColumns(exit *sandbox.Exit) (code *int, signal *string) {
	if exit == nil {
		return nil, nil
	}
	return &exit.Code, orNull(exit.Signal)
}
