package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
	"executor/migrations"
)

// model plays every actor there is on real Postgres, one statement at a time
// and in any order: executors that fetch and claim by River's own queries,
// River's completer, late or twice, operators in River UI, and the reaper.
type model struct {
	t         *rapid.T
	store     *runs.Store
	river     riverdriver.Executor
	runs      []uuid.UUID
	executors []*player
	retries   map[uuid.UUID]int // by operators
}

// player is an executor. A lost one may still act: it was paused, and wakes.
type player struct {
	id         uuid.UUID
	lost       bool
	deliveries []*delivery
	writes     []*write // River's, not done yet
}

// write is what River does to a job some time after its worker returned.
type write struct {
	*riverdriver.JobSetStateIfRunningParams
	run   uuid.UUID
	epoch int64 // of the claim it ends
	dead  bool  // the job was handed on: it must find nothing to do
}

// delivery is a job that River gave to an executor.
type delivery struct {
	job   *rivertype.JobRow
	run   uuid.UUID
	claim *runs.Claim
}

var ctx = context.Background()

func (m *model) must(err error) {
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

func (m *model) player() *player {
	p := &player{id: uuid.New()}
	m.must(m.store.Register(ctx, runs.ExecutorInfo{ID: p.id, Machine: "m"}))
	m.executors = append(m.executors, p)
	return p
}

func (m *model) enqueue() {
	spec, err := runs.ParseSpec([]byte(`{"steps": [{"name": "a", "shell": "true"}]}`))
	m.must(err)
	id, err := m.store.Enqueue(ctx, m.store.Pool(), spec, runs.Options{})
	m.must(err)
	m.runs = append(m.runs, id)
}

func (m *model) fetch(p *player) {
	result, err := m.river.JobGetAvailable(ctx, &riverdriver.JobGetAvailableParams{
		ClientID: p.id.String(), MaxAttemptedBy: 10, MaxToLock: 1, Queue: "default", Schema: "executor",
	})
	m.must(err)
	for _, job := range result.Jobs {
		var run uuid.UUID
		m.must(m.store.Pool().QueryRow(ctx, `SELECT ($1::jsonb ->> 'run_id')::uuid`, string(job.EncodedArgs)).Scan(&run))
		p.deliveries = append(p.deliveries, &delivery{job: job, run: run})
	}
}

func (m *model) claim(p *player, d *delivery) {
	before := m.owner(d.run)
	claim, verdict, err := m.store.Claim(ctx, d.run, d.job.ID, p.id)
	m.must(err)
	if claim != nil {
		if before != nil && !before.lost && before != p {
			m.t.Fatalf("the run of a living executor was claimed by another one")
		}
		d.claim = claim
		return
	}
	if verdict == runs.Claimed {
		m.t.Fatal("claimed without a claim")
	}
	if verdict == runs.Stale {
		p.finish(d, riverdriver.JobSetStateSnoozedAvailable(d.job.ID, time.Now(), d.job.Attempt-1, []byte(`{"snoozes": 1}`)), false)
		return
	}
	p.finish(d, riverdriver.JobSetStateCompleted(d.job.ID, time.Now(), nil), verdict == runs.Stray)
}

// owner is the player that the run's row names, while it has the claim.
func (m *model) owner(run uuid.UUID) *player {
	for _, p := range m.executors {
		for _, d := range p.deliveries {
			if d.run == run && d.claim != nil {
				var mine bool
				m.must(m.store.Pool().QueryRow(ctx, `SELECT epoch = $2 AND executor_id IS NOT NULL FROM executor.runs WHERE id = $1`, run, d.claim.Epoch).Scan(&mine))
				if mine {
					return p
				}
			}
		}
	}
	return nil
}

// finish leaves the write that River will do some time.
func (p *player) finish(d *delivery, params *riverdriver.JobSetStateIfRunningParams, dead bool) {
	p.drop(d)
	w := &write{JobSetStateIfRunningParams: params, run: d.run, dead: dead}
	if d.claim != nil {
		w.epoch = d.claim.Epoch
	}
	p.writes = append(p.writes, w)
}

func (p *player) drop(d *delivery) {
	p.deliveries = slices.DeleteFunc(p.deliveries, func(x *delivery) bool { return x == d })
}

func (m *model) end(p *player, d *delivery, how string) {
	failed := &runs.StepError{Err: faults.New(faults.SandboxLost, "x", nil)}
	completed := riverdriver.JobSetStateCompleted(d.job.ID, time.Now(), nil)
	write, dead := completed, false
	var err error
	switch how {
	case "succeed":
		err = m.store.Succeed(ctx, d.claim)
	case "fail":
		err = m.store.Fail(ctx, d.claim, failed)
	case "cancelled":
		err = m.store.Cancelled(ctx, d.claim)
	case "hand back":
		err = m.store.HandBack(ctx, d.claim, "test")
		dead = err == nil
	case "back off":
		if err = m.store.BackOff(ctx, d.claim, failed, time.Now().Add(time.Hour)); err == nil {
			write = riverdriver.JobSetStateSnoozed(d.job.ID, time.Now().Add(time.Hour), d.job.Attempt-1, []byte(`{"snoozes": 1}`))
		}
	case "back off for no time":
		if err = m.store.BackOff(ctx, d.claim, failed, time.Now()); err == nil {
			write = riverdriver.JobSetStateSnoozedAvailable(d.job.ID, time.Now(), d.job.Attempt-1, []byte(`{"snoozes": 1}`))
		}
	}
	if errors.Is(err, runs.ErrCancelled) {
		err = m.store.Cancelled(ctx, d.claim)
	}
	if err != nil && !errors.Is(err, runs.ErrFenced) {
		m.t.Fatalf("%s: %v", how, err)
	}
	if errors.Is(err, runs.ErrFenced) && !p.lost {
		m.t.Fatalf("%s: a living executor was fenced off", how)
	}
	p.finish(d, write, dead || errors.Is(err, runs.ErrFenced))
}

// complete is River's late write. Where the job was handed on, or its run
// claimed anew, it must change nothing; only a repeated snooze, which knows the
// id that the job keeps over a wait, is left to the reaper.
func (m *model) complete(w *write) {
	const look = `SELECT coalesce(string_agg(job::text, ';' ORDER BY id), '') FROM executor.river_job AS job`
	var before, after string
	var epoch int64
	m.must(m.store.Pool().QueryRow(ctx, look).Scan(&before))
	m.must(m.store.Pool().QueryRow(ctx, `SELECT epoch FROM executor.runs WHERE id = $1`, w.run).Scan(&epoch))
	defer func() {
		m.must(m.store.Pool().QueryRow(ctx, look).Scan(&after))
		snooze := w.State == rivertype.JobStateScheduled || w.State == rivertype.JobStateAvailable
		if (w.dead || w.epoch > 0 && epoch > w.epoch && !snooze) && before != after {
			m.t.Fatalf("a late write reached a job that was handed on:\n%s\n%s", before, after)
		}
	}()
	_, err := m.river.JobSetStateIfRunningMany(ctx, &riverdriver.JobSetStateIfRunningManyParams{
		ID: []int64{w.ID}, Attempt: []*int{w.Attempt}, ErrData: [][]byte{w.ErrData}, FinalizedAt: []*time.Time{w.FinalizedAt},
		MetadataDoMerge: []bool{w.MetadataDoMerge}, MetadataUpdates: [][]byte{w.MetadataUpdates},
		ScheduledAt: []*time.Time{w.ScheduledAt}, State: []rivertype.JobState{w.State}, Schema: "executor",
	})
	m.must(err)
}

// reap is a pass of the reaper, and of every living executor over its own.
func (m *model) reap() {
	seen, err := m.store.Disagreements(ctx)
	m.must(err)
	for _, o := range seen {
		_, err := m.store.Mend(ctx, o, runs.Reconcile(o.State(), o.JobState, o.Alive, false), 3)
		m.must(err)
	}
	for _, p := range m.executors {
		if p.lost {
			continue
		}
		owned, err := m.store.OwnedBy(ctx, p.id)
		m.must(err)
		for _, o := range owned {
			working := slices.ContainsFunc(p.deliveries, func(d *delivery) bool { return d.run == o.RunID })
			_, err := m.store.Mend(ctx, o, runs.Reconcile(o.State(), o.JobState, true, working), 3)
			m.must(err)
		}
	}
}

func (m *model) lose(p *player) {
	p.lost = true
	_, err := m.store.Pool().Exec(ctx, `UPDATE executor.executors SET lost_at = now() WHERE id = $1`, p.id)
	m.must(err)
}

func (m *model) operate(what string, run uuid.UUID) {
	var job int64
	m.must(m.store.Pool().QueryRow(ctx, `SELECT job_id FROM executor.runs WHERE id = $1`, run).Scan(&job))
	var err error
	if what == "retry" || what == "river retry" {
		m.retries[run]++
	}
	switch what {
	case "river cancel":
		_, err = m.river.JobCancel(ctx, &riverdriver.JobCancelParams{ID: job, CancelAttemptedAt: time.Now(), ControlTopic: "river_control", Schema: "executor"})
	case "river retry":
		_, err = m.river.JobRetry(ctx, &riverdriver.JobRetryParams{ID: job, Schema: "executor"})
	case "river delete":
		_, err = m.river.JobDelete(ctx, &riverdriver.JobDeleteParams{ID: job, Schema: "executor"})
	case "cancel":
		_, err = m.store.Cancel(ctx, m.store.Pool(), run)
	case "retry":
		if err = m.store.Retry(ctx, run); errors.Is(err, runs.ErrNotRetryable) {
			err = nil
		}
	}
	if err != nil && !errors.Is(err, rivertype.ErrNotFound) && !errors.Is(err, rivertype.ErrJobRunning) {
		m.t.Fatalf("%s: %v", what, err)
	}
}

// schedule is River's scheduler, after the waits are over.
func (m *model) schedule() {
	_, err := m.store.Pool().Exec(ctx, `UPDATE executor.river_job SET scheduled_at = now() WHERE state IN ('scheduled', 'retryable', 'available') AND scheduled_at > now()`)
	m.must(err)
	_, err = m.river.JobSchedule(ctx, &riverdriver.JobScheduleParams{Max: 100, Schema: "executor"})
	m.must(err)
}

// checkHistory follows every run's events: each move is one of the table.
func (m *model) checkHistory() {
	rows, err := m.store.Pool().Query(ctx, `SELECT run_id, kind FROM executor.run_events WHERE kind NOT IN ('claimed', 'handed_over', 'cancel_requested') ORDER BY run_id, id`)
	m.must(err)
	last, reopened := map[uuid.UUID]runs.Status{}, map[uuid.UUID]int{}
	var run uuid.UUID
	var to runs.Status
	_, err = pgx.ForEachRow(rows, []any{&run, &to}, func() error {
		from, moved := last[run]
		if !moved && to != runs.Queued || moved && !runs.Legal(from, to) {
			return fmt.Errorf("the run moved from %q to %q", from, to)
		}
		if from.Terminal() {
			if reopened[run]++; reopened[run] > m.retries[run] {
				return fmt.Errorf("a run that has %s was reopened though nobody asked", from)
			}
		}
		last[run] = to
		return nil
	})
	m.must(err)
}

// settle lets everybody do what is left, and looks at where it ends.
func (m *model) settle() {
	p := m.player()
	finished := func() bool {
		var left int
		m.must(m.store.Pool().QueryRow(ctx, `
			SELECT count(*) FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id
			WHERE run.finished_at IS NULL OR coalesce(job.state NOT IN ('completed', 'discarded', 'cancelled'), false)`).Scan(&left))
		return left == 0
	}
	for round := 0; !finished(); round++ {
		if round > 40 {
			m.t.Fatalf("the runs do not come to an end:\n%s", m.dump())
		}
		for _, p := range m.executors {
			for _, d := range slices.Clone(p.deliveries) {
				if d.claim == nil {
					m.claim(p, d)
				}
				if d.claim != nil {
					m.end(p, d, map[bool]string{true: "cancelled", false: "succeed"}[d.claim.Cancel])
				}
			}
			for _, w := range p.writes {
				m.complete(w)
			}
			p.writes = nil
		}
		m.schedule()
		m.reap()
		m.fetch(p)
	}
	m.reap() // a job that somebody ended otherwise says the same again
	m.checkHistory()
	rows, err := m.store.Pool().Query(ctx, `
		SELECT run.status, coalesce(run.failure_code, ''), job.state::text
		FROM executor.runs AS run JOIN executor.river_job AS job ON job.id = run.job_id`)
	m.must(err)
	var s state
	_, err = pgx.ForEachRow(rows, []any{&s.Status, &s.Code, &s.Job}, func() error {
		want := map[runs.Status]string{runs.Succeeded: "completed", runs.Failed: "discarded", runs.Cancelled: "cancelled"}[s.Status]
		if s.Job != want || (s.Status == runs.Failed) != (s.Code != "") {
			return fmt.Errorf("run and job do not agree: %+v", s)
		}
		return nil
	})
	m.must(err)
	var stray int
	m.must(m.store.Pool().QueryRow(ctx, `SELECT count(*) FROM executor.river_job AS job WHERE NOT EXISTS (SELECT FROM executor.runs WHERE job_id = job.id)`).Scan(&stray))
	if stray > 0 {
		m.t.Fatalf("%d jobs are nobody's", stray)
	}
}

func (m *model) dump() (s string) {
	m.must(m.store.Pool().QueryRow(ctx, `
		SELECT coalesce(string_agg(run::text || E'\n    ' || coalesce(job::text, 'no job'), E'\n'), '')
		FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id`).Scan(&s))
	return s
}

// step does one thing that can happen, chosen among those that can happen
// now: what makes a run go on comes more often.
func (m *model) step() {
	pick := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(m.t, what) }
	type action struct {
		name string
		do   func()
	}
	var can []action
	add := func(weight int, name string, do func()) {
		for range weight {
			can = append(can, action{name, do})
		}
	}
	if len(m.runs) < 3 {
		add(1, "enqueue", m.enqueue)
	}
	for n, p := range m.executors {
		by := fmt.Sprintf(" by executor %d", n)
		if !p.lost {
			add(4, "fetch"+by, func() { m.fetch(p) })
			add(1, "pause"+by, func() { m.lose(p); m.player() }) // it may act later
			add(1, "crash"+by, func() { m.lose(p); p.deliveries, p.writes = nil, nil; m.player() })
		}
		for _, d := range p.deliveries {
			if d.claim == nil {
				add(8, "claim"+by, func() { m.claim(p, d) })
				add(1, "lost fetch"+by, func() { p.drop(d) }) // the answer to the fetch never came
				continue
			}
			for _, how := range []string{"succeed", "fail", "cancelled", "hand back", "back off", "back off", "back off for no time"} {
				add(1, how+by, func() { m.end(p, d, how) })
			}
		}
		for i, w := range p.writes {
			add(2, "river: "+string(w.State)+by, func() { m.complete(w); p.writes = slices.Delete(p.writes, i, i+1) })
			add(2, "river, to be repeated: "+string(w.State)+by, func() { m.complete(w) }) // the answer is lost: it will be done again
		}
	}
	add(2, "reap", m.reap)
	add(4, "schedule", m.schedule)
	run := m.runs[pick("run", len(m.runs))]
	for _, what := range []string{"river cancel", "river retry", "river retry", "river retry", "river delete", "cancel", "retry"} {
		add(1, what, func() { m.operate(what, run) })
	}
	next := can[pick("step", len(can))]
	m.t.Log(next.name)
	next.do()
}

func TestRunsAndJobsAgreeWhateverHappens(t *testing.T) {
	t.Parallel()
	pool := runstest.Pool(t, runstest.URL(t))
	store := runs.NewStore(pool, migrations.DefaultSchema, runstest.Lease, zerolog.Nop())
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: rt, store: store, river: riverpgxv5.New(pool).GetExecutor(), retries: map[uuid.UUID]int{}}
		_, err := pool.Exec(ctx, `TRUNCATE executor.runs, executor.executors, executor.river_job CASCADE`)
		m.must(err)
		m.player()
		m.player()
		m.enqueue()
		for range rapid.IntRange(5, 80).Draw(rt, "steps") {
			m.step()
			m.checkHistory()
		}
		m.settle()
	})
}
