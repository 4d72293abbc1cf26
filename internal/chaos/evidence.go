package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/sandbox"
)

// evidence is everything that is read when it is all over.
type evidence struct {
	runs       map[uuid.UUID]*runRow
	registered []executorRow
	hosts      []hostRow
	strayJobs  []int64 // that belong to no run
	reported   map[string][]token
	overlap    []string
	dirs       []string       // left in the root of hosts
	processes  map[int]string // left on the machine
	logs       []string       // lines of the executors' logs that must not be there
}

type runRow struct {
	ID         uuid.UUID
	Name       string
	Status     string
	Code       string
	Message    string
	Round      int
	FinishedAt *time.Time
	JobState   string

	steps    []stepRow
	attempts []attemptRow
	launches []launchRow
	streams  []streamRow
	events   []eventRow
}

type stepRow struct {
	Run        uuid.UUID
	Name       string
	Status     string
	Result     json.RawMessage
	FinishedAt *time.Time
}

type attemptRow struct {
	Run          uuid.UUID
	Step, Member string
	N            int
	StartedAt    time.Time
	EndedAt      *time.Time
	Outcome      string
	Code         string
	Causes       string
}

type launchRow struct {
	Run          uuid.UUID
	Step, Member string
	N            int
	RecordedAt   time.Time
	EndedAt      *time.Time
	Exit         *int
}

// streamRow is a stream with its chunks put together; whole says that they
// follow each other from 0 to its length.
type streamRow struct {
	Run          uuid.UUID
	Step, Member string
	Launch       int
	Stream       string
	Length       int64
	Data         []byte
	Whole        bool
}

type eventRow struct {
	Run      uuid.UUID
	At       time.Time
	Kind     string
	Executor *uuid.UUID
	Epoch    int64
}

type executorRow struct {
	ID        uuid.UUID
	PID       int
	StartedAt time.Time
	LostAt    *time.Time
	StoppedAt *time.Time
}

type hostRow struct {
	Run   uuid.UUID
	Key   string
	State string
}

// gather reads the tables, the disk, the machine and the logs.
func (w *world) gather(ctx context.Context) (*evidence, error) {
	e := &evidence{runs: map[uuid.UUID]*runRow{}}
	e.reported, e.overlap = w.tokens.list()
	err := query(ctx, w, `
		SELECT run.id, coalesce(run.idempotency_key, ''), run.status, coalesce(run.failure_code, ''), coalesce(run.failure_message, ''), run.round,
		       run.finished_at, coalesce(job.state::text, 'missing')
		FROM executor.runs AS run LEFT JOIN executor.river_job AS job ON job.id = run.job_id`, func(r runHead) {
		e.runs[r.ID] = &runRow{ID: r.ID, Name: r.Name, Status: r.Status, Code: r.Code, Message: r.Message, Round: r.Round, FinishedAt: r.FinishedAt, JobState: r.JobState}
	})
	for _, read := range []func() error{
		func() error {
			return query(ctx, w, `SELECT run_id, name, status, result, finished_at FROM executor.run_steps ORDER BY position`,
				func(s stepRow) { r := e.runs[s.Run]; r.steps = append(r.steps, s) })
		},
		func() error {
			return query(ctx, w, `SELECT run_id, step, member, n, started_at, ended_at, coalesce(outcome, ''), coalesce(failure_code, ''), coalesce(causes::text, '') FROM executor.run_attempts ORDER BY n`,
				func(a attemptRow) { r := e.runs[a.Run]; r.attempts = append(r.attempts, a) })
		},
		func() error {
			return query(ctx, w, `SELECT run_id, step, member, n, recorded_at, ended_at, exit_code FROM executor.run_launches ORDER BY n`,
				func(l launchRow) { r := e.runs[l.Run]; r.launches = append(r.launches, l) })
		},
		func() error {
			return query(ctx, w, `
				SELECT s.run_id, s.step, s.member, s.launch, s.stream, s.length,
				       coalesce(string_agg(o.data, '' ORDER BY o.pos), ''),
				       coalesce(bool_and(o.pos = o.before), true) AND coalesce(sum(length(o.data)), 0) = s.length
				FROM executor.run_streams AS s LEFT JOIN (
				    SELECT *, coalesce(sum(length(data)) OVER (PARTITION BY run_id, step, member, launch, stream ORDER BY pos
				                                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
				    FROM executor.run_output
				) AS o USING (run_id, step, member, launch, stream)
				GROUP BY s.run_id, s.step, s.member, s.launch, s.stream, s.length`,
				func(s streamRow) { r := e.runs[s.Run]; r.streams = append(r.streams, s) })
		},
		func() error {
			return query(ctx, w, `SELECT run_id, at, kind, (data ->> 'executor_id')::uuid, coalesce((data ->> 'epoch')::bigint, 0) FROM executor.run_events ORDER BY id`,
				func(v eventRow) { r := e.runs[v.Run]; r.events = append(r.events, v) })
		},
		func() error {
			return query(ctx, w, `SELECT id, pid, started_at, lost_at, stopped_at FROM executor.executors ORDER BY started_at`,
				func(x executorRow) { e.registered = append(e.registered, x) })
		},
		func() error {
			return query(ctx, w, `SELECT run_id, key, state FROM executor.sandbox_hosts`, func(h hostRow) { e.hosts = append(e.hosts, h) })
		},
		func() error {
			return query(ctx, w, `SELECT id FROM executor.river_job AS job WHERE NOT EXISTS (SELECT FROM executor.runs WHERE job_id = job.id)`,
				func(j struct{ ID int64 }) { e.strayJobs = append(e.strayJobs, j.ID) })
		},
	} {
		if err == nil {
			err = read()
		}
	}
	if err != nil {
		return nil, err
	}
	e.dirs = w.hostsLeft()
	e.processes = leftProcesses(w.data)
	e.logs = w.badLines()
	return e, nil
}

// hostsLeft is what is in the root of hosts, but for what a create or a probe
// was killed over before it had a name: that is swept when it is an hour old.
func (w *world) hostsLeft() []string {
	var left []string
	entries, _ := os.ReadDir(filepath.Join(w.data, "hosts"))
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".new-") {
			left = append(left, entry.Name())
		}
	}
	return left
}

type runHead struct {
	ID         uuid.UUID
	Name       string
	Status     string
	Code       string
	Message    string
	Round      int
	FinishedAt *time.Time
	JobState   string
}

func query[T any](ctx context.Context, w *world, sql string, each func(T)) error {
	rows, err := w.db.Query(ctx, sql)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	for _, row := range all {
		each(row)
	}
	return err
}

// leftProcesses finds what carries the mark of a launch below dir.
func leftProcesses(dir string) map[int]string {
	left := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if bytes.Contains(env, []byte(sandbox.MarkLaunch+"="+dir)) {
			command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
			left[pid] = strings.ReplaceAll(fmt.Sprintf("%.120s", command), "\x00", " ")
		}
	}
	return left
}

// badLines are panics and what an executor itself calls its bug.
func (w *world) badLines() []string {
	var bad []string
	for _, e := range w.executors {
		content, _ := os.ReadFile(e.log.Name())
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, "a bug of the executor") || strings.HasPrefix(line, "panic:") || strings.Contains(line, "DATA RACE") || strings.HasPrefix(line, "fatal error:") {
				bad = append(bad, fmt.Sprintf("executor %d: %.600s", e.index, strings.TrimSpace(line)))
			}
		}
	}
	return bad
}
