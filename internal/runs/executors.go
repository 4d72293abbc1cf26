package runs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ExecutorInfo describes one running process of this program.
type ExecutorInfo struct {
	ID       uuid.UUID // fresh at every start
	Machine  string    // which machine's local hosts it can reach
	Hostname string
	Version  string
	PID      int
}

// Register writes the executor's row. Its beats begin with it.
func (s *Store) Register(ctx context.Context, e ExecutorInfo) error {
	_, err := s.pool.Exec(ctx, s.q(`
		INSERT INTO executor.executors (id, machine, hostname, version, pid, beat_watched) VALUES ($1, $2, $3, $4, $5, `+watchClock+`)`),
		e.ID, e.Machine, e.Hostname, e.Version, e.PID)
	return err
}

// Installation names this database's schema: providers mark their hosts with
// it.
func (s *Store) Installation(ctx context.Context) (id uuid.UUID, err error) {
	err = s.pool.QueryRow(ctx, s.q(`SELECT id FROM executor.installation`)).Scan(&id)
	return id, err
}

// MachineQueue is the queue that only the executors of a machine work on.
func (s *Store) MachineQueue(ctx context.Context, machine string) (queue string, err error) {
	err = s.pool.QueryRow(ctx, s.q(`SELECT executor.machine_queue($1)`), machine).Scan(&queue)
	return queue, err
}

// Beat says that the executor lives, by the database's clock. ErrFenced: it
// was judged dead, or has no row; it may not work under this id any more.
func (s *Store) Beat(ctx context.Context, id uuid.UUID) error {
	tag, err := s.pool.Exec(ctx, s.q(`
		UPDATE executor.executors SET beat_at = now(), beat_watched = `+watchClock+`
		WHERE id = $1 AND lost_at IS NULL AND stopped_at IS NULL`), id)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrFenced
	}
	return err
}

// Leave says that the executor has let go of everything.
func (s *Store) Leave(ctx context.Context, id uuid.UUID) error {
	_, err := s.pool.Exec(ctx, s.q(`UPDATE executor.executors SET stopped_at = now() WHERE id = $1 AND stopped_at IS NULL`), id)
	return err
}

// sessionKey is the advisory lock that an executor's own database session
// holds: it vanishes with the session, at once.
func sessionKey(id uuid.UUID) string { return "session:" + id.String() }

// HoldSession takes the executor's session lock on a connection that is kept
// for nothing else, and says in its row that it has one.
func (s *Store) HoldSession(ctx context.Context, conn DB, id uuid.UUID) error {
	var held bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`, sessionKey(id)).Scan(&held); err != nil {
		return err
	}
	if !held {
		return errors.New("the session before still holds the lock")
	}
	_, err := conn.Exec(ctx, s.q(`UPDATE executor.executors SET session = true, session_gone_at = NULL WHERE id = $1`), id)
	return err
}

// Suspect is a live executor that may be dead.
type Suspect struct {
	ID          uuid.UUID
	BeatAge     time.Duration // since its last beat
	SessionGone time.Duration // for how long its session has been seen gone; 0: it holds it, never had one, or it was not seen before
	ServerAge   time.Duration // since Postgres started
	Watched     time.Duration // of the time since its last beat, for how long somebody looked
}

// watching is the row of housekeeping that has the watch clock. It runs while
// somebody looks for dead executors, and stands still while nobody reaches
// Postgres: then nobody can beat either. What is between two looks counts up to
// watchStep, which is as long as a slow pass, and leaves everybody time to beat
// after an outage. An outage in the middle of a lease only puts the judgement
// off; it does not begin the lease anew.
const (
	watching   = "watch"
	watchStep  = "interval '5 seconds'"
	watchClock = `coalesce((SELECT watched + least(now() - done_at, ` + watchStep + `) FROM executor.housekeeping WHERE name = '` + watching + `'), '0')`
)

// Look moves the watch clock: one who looks for dead executors does so at a
// time.
func (s *Store) Look(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, s.q(`
		INSERT INTO executor.housekeeping (name, done_at) VALUES ('`+watching+`', now())
		ON CONFLICT (name) DO UPDATE SET done_at = now(), watched = `+watchClock))
	return err
}

// Suspects lists the executors that are late with their beat, or whose session
// is gone, and notes since when it is.
func (s *Store) Suspects(ctx context.Context, late time.Duration) ([]Suspect, error) {
	rows, err := s.pool.Query(ctx, s.q(`
		WITH live AS (
		    SELECT id, beat_at, beat_watched, session_gone_at, session AND NOT EXISTS (
		        SELECT FROM pg_locks AS l
		        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		          AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('session:' || id::text, 0)
		    ) AS gone
		    FROM executor.executors WHERE stopped_at IS NULL AND lost_at IS NULL
		), noted AS (
		    UPDATE executor.executors AS e SET session_gone_at = CASE WHEN gone THEN now() END
		    FROM live WHERE e.id = live.id AND gone <> (live.session_gone_at IS NOT NULL)
		)
		SELECT id, now() - beat_at, CASE WHEN gone AND session_gone_at IS NOT NULL THEN now() - session_gone_at ELSE '0' END, now() - pg_postmaster_start_time(),
		       greatest(`+watchClock+` - beat_watched, '0')
		FROM live WHERE gone OR beat_at < now() - $1::interval`), late)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Suspect])
}

// MarkLost judges an executor dead, unless it has beaten in the last while.
func (s *Store) MarkLost(ctx context.Context, id uuid.UUID, silent time.Duration) (bool, error) {
	tag, err := s.pool.Exec(ctx, s.q(`
		UPDATE executor.executors SET lost_at = now()
		WHERE id = $1 AND lost_at IS NULL AND stopped_at IS NULL AND beat_at < now() - $2::interval`), id, silent)
	return err == nil && tag.RowsAffected() > 0, err
}

// outage reports whether an executor died of something that concerned more
// than itself and the run: Postgres was away, or every other executor that
// lived beside it, since it claimed the run, went silent at the same time. Then
// the run is not to blame.
func (s *Store) outage(ctx context.Context, dead, run uuid.UUID) (outage bool, err error) {
	err = s.pool.QueryRow(ctx, s.q(`
		SELECT pg_postmaster_start_time() > dead.beat_at
		    OR count(peer) > 0 AND count(peer) FILTER (WHERE peer.beat_at > dead.beat_at + interval '15 seconds' OR peer.lost_at IS NULL AND peer.stopped_at IS NULL) = 0
		FROM executor.executors AS dead
		JOIN executor.runs AS run ON run.id = $2
		LEFT JOIN executor.executors AS peer ON peer.id <> dead.id AND peer.started_at < dead.beat_at
		      AND coalesce(peer.stopped_at, peer.beat_at) > dead.beat_at - interval '15 seconds'
		      AND coalesce(peer.lost_at, 'infinity') > run.claimed_at
		WHERE dead.id = $1 GROUP BY dead.id`), dead, run).Scan(&outage)
	return outage, err
}

// Housekeeping names what one executor at a time does for all.
const Housekeeping = "reaper"

// KeepHouse records that a pass was made.
func (s *Store) KeepHouse(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, s.q(`
		INSERT INTO executor.housekeeping (name, done_at) VALUES ($1, now())
		ON CONFLICT (name) DO UPDATE SET done_at = now()`), Housekeeping)
	return err
}

// LastPass is when any executor last made a pass, and the time by the same
// clock; zero: never.
func (s *Store) LastPass(ctx context.Context) (last, now time.Time, err error) {
	var at *time.Time
	err = s.pool.QueryRow(ctx, s.q(`SELECT now(), (SELECT done_at FROM executor.housekeeping WHERE name = $1)`), Housekeeping).Scan(&now, &at)
	if at != nil {
		last = *at
	}
	return last, now, err
}

// Work names a run that an executor works on.
type Work struct {
	RunID uuid.UUID
	Epoch int64
}

// News is what a worker must hear about its run.
type News struct {
	RunID  uuid.UUID
	Fenced bool // it is somebody else's now
	Cancel bool // somebody asked for its end
}

// Watch looks at the runs an executor works on, and returns those there is
// news of.
func (s *Store) Watch(ctx context.Context, work []Work) ([]News, error) {
	if len(work) == 0 {
		return nil, nil
	}
	ids, epochs := make([]string, len(work)), make([]int64, len(work))
	for i, w := range work {
		ids[i], epochs[i] = w.RunID.String(), w.Epoch
	}
	rows, err := s.pool.Query(ctx, s.q(`
		SELECT * FROM (
		    SELECT mine.id,
		           run.id IS NULL OR run.epoch <> mine.epoch AS fenced,
		           coalesce(run.cancel_requested_at IS NOT NULL OR job.metadata ? 'cancel_attempted_at' OR job.state = 'cancelled', false) AS cancel
		    FROM unnest($1::text[]::uuid[], $2::bigint[]) AS mine (id, epoch)
		    LEFT JOIN executor.runs AS run ON run.id = mine.id
		    LEFT JOIN executor.river_job AS job ON job.id = run.job_id
		) AS news
		WHERE fenced OR cancel`), ids, epochs)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[News])
}

// Exclusively calls do while no other executor is in it, in the transaction
// that holds the lock; it does nothing where another one is. After the limit
// do's context ends, and Postgres takes the lock away from who does not answer:
// an executor that was paused or cut off in the middle must not keep the others
// out.
func (s *Store) Exclusively(ctx context.Context, what string, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var ours bool
		err := tx.QueryRow(ctx, `
			SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)) FROM set_config('idle_in_transaction_session_timeout', $2, true)`,
			"executor."+s.schema+"."+what, strconv.FormatInt(limit.Milliseconds(), 10)).Scan(&ours)
		if err != nil || !ours {
			return err
		}
		return do(ctx)
	})
}
