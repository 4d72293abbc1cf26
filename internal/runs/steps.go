package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
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
// earlier claim.
func (s *Store) beginAttempt(ctx context.Context, c *Claim, p place, n int) error {
	return s.persist(ctx, "begin attempt", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
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
// one that exists, so that this claim follows its streams.
func (s *Store) recordLaunch(ctx context.Context, c *Claim, p place, n int, host int64) error {
	return s.persist(ctx, "record launch", func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
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

// queueAttemptFailed writes how the attempt behind f ended. A StepError that
// was recorded before is left as it is.
func (s *Store) queueAttemptFailed(b *pgx.Batch, c *Claim, f *StepError, retryAt time.Time) error {
	if f.attempt == 0 || f.recorded {
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

// Succeed ends the run and its job.
func (s *Store) Succeed(ctx context.Context, c *Claim) error {
	return s.end(ctx, c, Succeeded, func(b *pgx.Batch) error {
		s.queueEnd(b, c, Succeeded, nil, nil, nil)
		return nil
	})
}

// Fail ends the run with the fault's code, and its job with an error that
// begins with it.
func (s *Store) Fail(ctx context.Context, c *Claim, f *StepError) error {
	return s.end(ctx, c, Failed, func(b *pgx.Batch) error {
		if err := s.queueAttemptFailed(b, c, f, time.Time{}); err != nil {
			return err
		}
		s.queueAttemptsClosed(b, c, "failed", "interrupted")
		code, message := f.Fault().Kind.Code(), f.Message()
		s.queueEnd(b, c, Failed, &code, &message, orNull(f.place.step))
		return nil
	})
}

// Cancelled ends the run as cancelled. Its processes have been seen stopped,
// or their hosts deleted.
func (s *Store) Cancelled(ctx context.Context, c *Claim) error {
	return s.end(ctx, c, Cancelled, func(b *pgx.Batch) error {
		s.queueAttemptsClosed(b, c, "cancelled", "cancelled")
		s.queueEnd(b, c, Cancelled, nil, nil, nil)
		return nil
	})
}

// ErrCancelPending is BackOff's answer when the run is to be cancelled
// instead.
var ErrCancelPending = errors.New("the run is to be cancelled")

// BackOff ends the attempt and lets the run wait until retryAt. The worker
// must then snooze the job until the same time.
func (s *Store) BackOff(ctx context.Context, c *Claim, f *StepError, retryAt time.Time) error {
	err := s.end(ctx, c, BackingOff, func(b *pgx.Batch) error {
		b.Queue(s.q(`SELECT executor.refuse_if_cancelled($1)`), c.RunID)
		if err := s.queueAttemptFailed(b, c, f, retryAt); err != nil {
			return err
		}
		s.queueBackOff(b, c, f.Fault().Kind.Code(), f.attempt, retryAt)
		return nil
	})
	if code := sqlstate(err); code == sqlstateCancelled {
		return ErrCancelPending
	}
	return err
}

// PutOff lets a run wait whose cancellation could not be carried out yet: a
// process could not be stopped, nor its host deleted.
func (s *Store) PutOff(ctx context.Context, c *Claim, code *faults.Kind, retryAt time.Time) error {
	return s.end(ctx, c, BackingOff, func(b *pgx.Batch) error {
		s.queueBackOff(b, c, code.Code(), 0, retryAt)
		return nil
	})
}

// HandBack gives the run's job back to the queue under a new id, its attempt
// unspent, for another executor to continue the run. The processes go on.
func (s *Store) HandBack(ctx context.Context, c *Claim, reason string) error {
	return s.persist(ctx, "hand back", func(ctx context.Context) error {
		return pgx.BeginTxFunc(ctx, s.pool, brief, func(tx pgx.Tx) error {
			var job int64
			err := tx.QueryRow(ctx, s.q(`
				SELECT job_id FROM executor.runs
				WHERE id = $1 AND epoch = $2 AND executor_id IS NOT NULL AND status = 'running' FOR UPDATE`),
				c.RunID, c.Epoch).Scan(&job)
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrFenced
			}
			if err != nil {
				return err
			}
			_, err = s.rekey(ctx, tx, rekey{run: c.RunID, job: job, status: Running, epoch: c.Epoch, state: "available", release: true, reason: reason})
			return err
		})
	})
}

// end carries out a move that ends the claim. When the fence answers that the
// claim is over, it may be that an earlier try ended it and the answer was
// lost: then the run says so.
func (s *Store) end(ctx context.Context, c *Claim, to Status, queue func(*pgx.Batch) error) error {
	return s.persist(ctx, "move to "+string(to), func(ctx context.Context) error {
		b := &pgx.Batch{}
		s.queueFence(b, c)
		if err := queue(b); err != nil {
			return err
		}
		err := s.batch(ctx, b)
		if !isFence(err) {
			return err
		}
		var mine bool
		if err := s.pool.QueryRow(ctx, s.q(`SELECT epoch = $2 AND status = $3 FROM executor.runs WHERE id = $1`), c.RunID, c.Epoch, to).Scan(&mine); err != nil {
			return err
		}
		if !mine {
			return ErrFenced
		}
		return nil
	})
}

func exitColumns(exit *sandbox.Exit) (code *int, signal *string) {
	if exit == nil {
		return nil, nil
	}
	return &exit.Code, orNull(exit.Signal)
}

// sanitizeText is s as Postgres text can hold it.
func sanitizeText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// sanitizeJSON replaces the escape of NUL, which jsonb refuses; an escaped
// backslash before it is not part of it.
func sanitizeJSON(data []byte) string {
	if !bytes.Contains(data, []byte(`\u0000`)) {
		return string(data)
	}
	var out strings.Builder
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 >= len(data) {
			out.WriteByte(data[i])
			continue
		}
		if bytes.HasPrefix(data[i:], []byte(`\u0000`)) {
			out.WriteString(`\ufffd`)
			i += 5
			continue
		}
		out.Write(data[i : i+2])
		i++
	}
	return out.String()
}
