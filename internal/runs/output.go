package runs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"executor/internal/sandbox"
)

// chunk is a piece of one stream, on its way to the store. from is where the
// stream ended before; pos is larger where bytes between were dropped.
type chunk struct {
	stream    sandbox.Stream
	from, pos int64
	data      []byte
	keepFrom  int64 // bytes of the stream's tail before this are dropped; 0: none
	head      int64 // bytes of the stream's head that are kept in any case
}

// appendOutput writes a chunk if its stream still ends where the chunk
// begins, in one statement with the stream's new end. So no byte is stored
// twice or missing, whoever writes. ErrFenced: another claim follows the
// stream.
func (s *Store) appendOutput(ctx context.Context, c *Claim, p place, launch int, k chunk) error {
	end := k.pos + int64(len(k.data))
	return s.persist(ctx, "append output", func(ctx context.Context) error {
		b := &pgx.Batch{}
		if p.member != "" {
			// Members write side by side: whoever gets the lower seq commits
			// first, so that a reader misses none.
			b.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('output:' || $1::text, 0))`, c.RunID)
		}
		var stored bool
		b.Queue(s.q(`
			WITH moved AS (
			    UPDATE executor.run_streams SET length = $8
			    WHERE (run_id, step, member, launch, stream) = ($1, $2, $3, $4, $5) AND length = $6 AND epoch = $7
			    RETURNING 1
			), dropped AS (
			    DELETE FROM executor.run_output
			    WHERE (run_id, step, member, launch, stream) = ($1, $2, $3, $4, $5)
			      AND pos >= $11 AND pos + length(data) <= $12 AND EXISTS (SELECT FROM moved)
			)
			INSERT INTO executor.run_output (run_id, step, member, launch, stream, pos, data)
			SELECT $1, $2, $3, $4, $5, $9, $10 FROM moved`),
			c.RunID, p.step, p.member, launch, k.stream, k.from, c.Epoch, end, k.pos, k.data, k.head, k.keepFrom).
			Exec(func(tag pgconn.CommandTag) error { stored = tag.RowsAffected() == 1; return nil })
		if err := s.batch(ctx, b); err != nil || stored {
			return err
		}
		// An earlier try may have been committed though its answer was lost.
		var mine bool
		err := s.pool.QueryRow(ctx, s.q(`
			SELECT length = $6 AND epoch = $7 FROM executor.run_streams
			WHERE (run_id, step, member, launch, stream) = ($1, $2, $3, $4, $5)`),
			c.RunID, p.step, p.member, launch, k.stream, end, c.Epoch).Scan(&mine)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !mine {
			return ErrFenced
		}
		return err
	})
}

// Chunk is a stored piece of output.
type Chunk struct {
	Seq    int64          // grows with the time of receipt, within a run
	Step   string         // the step it belongs to
	Member string         // of a composite step
	Launch int            // which start of the process printed it
	Stream sandbox.Stream // stdout or stderr
	Pos    int64          // of the first byte in its stream; a gap to the chunk before was dropped
	At     time.Time
	Data   []byte
}

// Output returns up to limit chunks of a run with a Seq above after, in the
// order they were received. Within one stream that is the order of the bytes.
func (s *Store) Output(ctx context.Context, run uuid.UUID, after int64, limit int) ([]Chunk, error) {
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT seq, step, member, launch, stream, pos, at, data
		FROM executor.run_output WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`), run, after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Chunk])
}

// storedTail is what is stored without a gap of a stream's last limit bytes.
func (s *Store) storedTail(ctx context.Context, c *Claim, p place, launch int, stream sandbox.Stream, limit int64) ([]byte, error) {
	var tail []byte
	err := s.persist(ctx, "read output", func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, s.q(`
			SELECT o.pos, o.data FROM executor.run_output AS o
			JOIN executor.run_streams AS st USING (run_id, step, member, launch, stream)
			WHERE (o.run_id, o.step, o.member, o.launch, o.stream) = ($1, $2, $3, $4, $5) AND o.pos >= st.length - $6
			ORDER BY o.pos`), c.RunID, p.step, p.member, launch, stream, limit)
		if err != nil {
			return err
		}
		var pos, end int64
		var data []byte
		tail = nil
		_, err = pgx.ForEachRow(rows, []any{&pos, &data}, func() error {
			if pos != end {
				tail = nil
			}
			tail, end = append(tail, data...), pos+int64(len(data))
			return nil
		})
		return err
	})
	return tail, err
}

// openLaunch is a process that may be alive.
type openLaunch struct {
	place place
	n     int
	host  sandbox.Entry
}

func (l openLaunch) launch(c *Claim) sandbox.Launch {
	return sandbox.Launch{RunID: c.RunID.String(), Step: l.place.step, Member: l.place.member, N: l.n}
}

// openLaunches lists the processes of a run that were not seen to end.
func (s *Store) openLaunches(ctx context.Context, c *Claim) ([]openLaunch, error) {
	var open []openLaunch
	err := s.persist(ctx, "read launches", func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, s.q(`
			SELECT l.step, l.member, l.n, h.id, h.key, h.provider, coalesce(h.host_id, ''), h.machine, h.state
			FROM executor.run_launches AS l JOIN executor.sandbox_hosts AS h ON h.id = l.host
			WHERE l.run_id = $1 AND l.ended_at IS NULL AND h.state <> 'released'`), c.RunID)
		if err != nil {
			return err
		}
		open, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l openLaunch, err error) {
			h := &l.host
			err = row.Scan(&l.place.step, &l.place.member, &l.n, &h.ID, &h.Key, &h.Provider, &h.HostID, &h.Machine, &h.State)
			return l, err
		})
		return err
	})
	return open, err
}
