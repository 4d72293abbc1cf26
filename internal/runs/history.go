package runs

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
)

// history is what earlier claims of the run left behind.
type history struct {
	steps    map[string]Status
	attempts []pastAttempt
	launches []pastLaunch
}

type pastAttempt struct {
	step, member string
	n, round     int
	code         string // of a failed one
	message      string // and what its first cause says
	open         bool
	retryAt      *time.Time
	succeeded    bool
}

type pastLaunch struct {
	step, member   string
	n              int
	host           int64
	open           bool
	startedAt      *time.Time
	stdout, stderr int64
}

func (s *Store) loadHistory(ctx context.Context, run uuid.UUID) (history, error) {
	h := history{steps: map[string]Status{}}
	b := &pgx.Batch{}
	b.Queue(s.q(`SELECT name, status FROM executor.run_steps WHERE run_id = $1`), run).Query(func(rows pgx.Rows) error {
		var name string
		var status Status
		_, err := pgx.ForEachRow(rows, []any{&name, &status}, func() error { h.steps[name] = status; return nil })
		return err
	})
	b.Queue(s.q(`
		SELECT step, member, n, round, coalesce(failure_code, ''), coalesce(causes -> 0 ->> 'message', ''), ended_at IS NULL, retry_at, outcome IS NOT DISTINCT FROM 'succeeded'
		FROM executor.run_attempts WHERE run_id = $1 ORDER BY n`), run).Query(func(rows pgx.Rows) error {
		var a pastAttempt
		_, err := pgx.ForEachRow(rows, []any{&a.step, &a.member, &a.n, &a.round, &a.code, &a.message, &a.open, &a.retryAt, &a.succeeded}, func() error {
			h.attempts = append(h.attempts, a)
			return nil
		})
		return err
	})
	b.Queue(s.q(`
		SELECT l.step, l.member, l.n, l.host, l.ended_at IS NULL, l.started_at,
		       coalesce(max(st.length) FILTER (WHERE st.stream = 'stdout'), 0),
		       coalesce(max(st.length) FILTER (WHERE st.stream = 'stderr'), 0)
		FROM executor.run_launches AS l
		LEFT JOIN executor.run_streams AS st ON (st.run_id, st.step, st.member, st.launch) = (l.run_id, l.step, l.member, l.n)
		WHERE l.run_id = $1
		GROUP BY l.run_id, l.step, l.member, l.n
		ORDER BY l.n`), run).Query(func(rows pgx.Rows) error {
		var l pastLaunch
		_, err := pgx.ForEachRow(rows, []any{&l.step, &l.member, &l.n, &l.host, &l.open, &l.startedAt, &l.stdout, &l.stderr}, func() error {
			h.launches = append(h.launches, l)
			return nil
		})
		return err
	})
	return h, s.batch(ctx, b)
}

// lastAttempt is the newest attempt of a step or member.
func (h *history) lastAttempt(step, member string) (pastAttempt, bool) {
	var last pastAttempt
	found := false
	for _, a := range h.attempts {
		if a.step == step && a.member == member {
			last, found = a, true
		}
	}
	return last, found
}

// lastLaunch is the newest launch of a step or member.
func (h *history) lastLaunch(step, member string) (pastLaunch, bool) {
	var last pastLaunch
	found := false
	for _, l := range h.launches {
		if l.step == step && l.member == member {
			last, found = l, true
		}
	}
	return last, found
}

// occupied reports whether a process of the step that was not seen to end is in
// the host.
func (h *history) occupied(host int64, step string) bool {
	return slices.ContainsFunc(h.launches, func(l pastLaunch) bool { return l.open && l.host == host && l.step == step })
}

// earlier lists the kinds that ended the failed attempts of a step or member
// in the given round: its used-up retries.
func (h *history) earlier(step, member string, round int) []*faults.Kind {
	var kinds []*faults.Kind
	for _, a := range h.attempts {
		if a.step != step || a.member != member || a.round != round || a.code == "" {
			continue
		}
		kind, ok := faults.ByCode(a.code)
		if !ok {
			kind = faults.Internal // a retired or a newer program's code
		}
		kinds = append(kinds, kind)
	}
	return kinds
}
