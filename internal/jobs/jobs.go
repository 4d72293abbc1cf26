// Package jobs delivers runs to an executor through River. It holds the one
// switch from a fault to a snooze or a discard, the executor's life (beats,
// drain, the reaper) and River's client. What it knows of a run it asks of
// runs; it must not know providers.
//
// A job is only a delivery: runs.status is the truth. The worker returns to
// River in two ways. A run that has ended, or was handed over, has had its job
// moved in the same statement, and what River writes a moment later finds
// nothing to do: nil. A run that backs off is the exception, where River's
// snooze is what moves the job.
package jobs

import (
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/rs/zerolog"

	"executor/internal/runs"
)

// Args of a run's job: the run's id and nothing else, so that nothing secret
// reaches River.
type Args struct {
	RunID uuid.UUID `json:"run_id"`
}

// Kind is River's name for the job.
func (Args) Kind() string { return "run" }

// InsertOpts makes every returned error a discard; a retry is a snooze, which
// River does not count.
func (Args) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// rescueAfter switches River's rescuer off: it would cancel a job whose cancel
// was asked for over an hour ago while its process still lives. Recovery is
// the reaper's.
const rescueAfter = 100 * 365 * 24 * time.Hour

// clientConfig is what every client of River's in this program has in common.
func clientConfig(schema string, w river.Worker[Args], log zerolog.Logger) *river.Config {
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	return &river.Config{
		Schema:               schema,
		Workers:              workers,
		JobTimeout:           -1,
		RescueStuckJobsAfter: rescueAfter,
		Logger:               slog.New(zerolog.NewSlogHandler(log.With().Str("component", "river").Logger())),
	}
}

// NewInspector is a client that works on nothing: for pages and tests that
// look at jobs, cancel and retry them.
func NewInspector(store *runs.Store, log zerolog.Logger) (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(store.Pool()), clientConfig(store.Schema(), &worker{}, log))
}
