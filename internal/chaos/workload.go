package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"executor/internal/runs"
)

// task is a run with its known answer.
type task struct {
	name    string
	spec    runs.Spec
	raw     string // sent instead of the spec: one that is none
	places  []*place
	outcome runs.Status
	code    string // of a failure
	at      time.Duration
	viaSQL  bool
	deeds   []deed
}

// place is a command of a task.
type place struct {
	task, step, member string
	lines              int
	pause              time.Duration // between two lines
	exit               int
	flaky              bool // its first launch fails
	endless            bool // it is stopped by its time limit
	killed             bool // it kills itself
}

// deed is what an operator does to a run.
type deed struct {
	after time.Duration // since it was enqueued
	what  string        // cancel or retry
	via   string        // sql, api or riverui
}

// script reports its beginning, prints numbered lines, and reports its end. It
// waits by reading from the token server, which says nothing: so nothing is
// forked.
const script = `exec 3<>/dev/tcp/127.0.0.1/$CHAOS_PORT || exit 90
printf 'start %s %s\n' "$CHAOS_PLACE" "${EXECUTOR_LAUNCH##*/}" >&3
read -r -u 3 nth || exit 91
for ((i = 1; i <= CHAOS_LINES; i++)); do
	printf '%s: line %d of %d\n' "$CHAOS_PLACE" $i $CHAOS_LINES
	((i % 4)) || printf '%s: note %d\n' "$CHAOS_PLACE" $i >&2
	[ $CHAOS_PAUSE = 0 ] || read -r -t $CHAOS_PAUSE -u 3 _
done
printf '{"place": "%s"}\n' "$CHAOS_PLACE"
printf 'end\n' >&3
read -r -u 3 _ || exit 92
[ "$CHAOS_FLAKY$nth" != yes1 ] || exit 7
[ -z "$CHAOS_KILL" ] || kill -KILL $$
exit $CHAOS_EXIT`

// id names the place in the reports.
func (p *place) id() string { return p.task + "/" + p.step + "/" + p.member }

// stdout is what a launch prints that is not stopped.
func (p *place) stdout() string {
	var out strings.Builder
	for i := 1; i <= p.lines; i++ {
		fmt.Fprintf(&out, "%s: line %d of %d\n", p.id(), i, p.lines)
	}
	fmt.Fprintf(&out, "{\"place\": %q}\n", p.id())
	return out.String()
}

func (p *place) stderr() string {
	var out strings.Builder
	for i := 4; i <= p.lines; i += 4 {
		fmt.Fprintf(&out, "%s: note %d\n", p.id(), i)
	}
	return out.String()
}

func (p *place) command() runs.Step {
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return ""
	}
	name := p.step
	if p.member != "" {
		name = p.member
	}
	step := runs.Step{Name: name, Argv: []string{"bash", "-c", script}, Env: map[string]string{
		"CHAOS_PLACE": p.id(), "CHAOS_LINES": fmt.Sprint(p.lines), "CHAOS_PAUSE": fmt.Sprint(p.pause.Seconds()),
		"CHAOS_EXIT": fmt.Sprint(p.exit), "CHAOS_FLAKY": yes(p.flaky), "CHAOS_KILL": yes(p.killed),
	}}
	if p.endless {
		step.Timeout = runs.Duration(2 * time.Second)
	}
	return step
}

// author writes tasks.
type author struct{ *rand.Rand }

func (a author) between(low, high time.Duration) time.Duration {
	return low + time.Duration(a.Int64N(int64(high-low)))
}

// task is number n. Most succeed; a few fail in each way that is certain.
func (a author) task(n int, port int) *task {
	grace := runs.Duration(2 * time.Second)
	t := &task{name: fmt.Sprintf("r%04d", n), outcome: runs.Succeeded, viaSQL: a.IntN(2) == 0}
	t.spec = runs.Spec{Name: t.name, StopGrace: &grace, Env: map[string]string{"CHAOS_PORT": fmt.Sprint(port)},
		Retry: runs.Retry{Delays: []runs.Duration{runs.Duration(time.Second), runs.Duration(2 * time.Second)}}}
	kind := a.IntN(100)
	if kind%3 == 0 {
		t.spec.Sandbox = runs.Kept
	}
	for i := range 1 + a.IntN(4) {
		if kind >= 40 && kind < 60 && i == 1 {
			t.addParallel(a, 2+a.IntN(3))
			continue
		}
		if kind >= 80 && kind < 85 && i == 0 { // one fails for good while the others go on
			t.addParallel(a, 3)
			t.places[1].exit = 3
			t.places[2].pause = a.between(8*time.Second, 16*time.Second) / time.Duration(t.places[2].lines)
			t.fails("command_failed")
			break
		}
		t.add(a.place(t.name, fmt.Sprintf("s%d", i), ""))
	}
	last := t.places[len(t.places)-1]
	switch {
	case kind < 20: // long: a kill finds it running
		last.pause = a.between(10*time.Second, 25*time.Second) / time.Duration(last.lines)
	case kind < 25: // a flood
		last.lines, last.pause = 3000, 0
	case kind >= 85 && kind < 90:
		last.exit = 3
		t.fails("command_failed")
	case kind >= 90 && kind < 93:
		last.killed = true
		t.fails("command_killed")
	case kind >= 93 && kind < 95:
		last.endless, last.lines, last.pause = true, 1000, 500*time.Millisecond
		t.fails("timeout")
	case kind >= 95 && kind < 97:
		t.places, t.viaSQL = nil, true
		t.raw = fmt.Sprintf(`{"name": %q, "steps": [{"name": "a"}]}`, t.name)
		t.fails("invalid_spec")
	case kind >= 97:
		last.flaky = true
		t.spec.Retry.Include = []string{"command_failed"}
	}
	t.write()
	return t
}

func (t *task) fails(code string) { t.outcome, t.code = runs.Failed, code }

func (t *task) add(p *place) { t.places = append(t.places, p) }

func (t *task) addParallel(a author, n int) {
	for j := range n {
		t.add(a.place(t.name, "par", fmt.Sprintf("m%d", j)))
	}
}

func (a author) place(task, step, member string) *place {
	return &place{task: task, step: step, member: member, lines: 3 + a.IntN(20), pause: a.between(50*time.Millisecond, 400*time.Millisecond)}
}

// write puts the places into the spec.
func (t *task) write() {
	for _, p := range t.places {
		steps := &t.spec.Steps
		if p.member == "" {
			*steps = append(*steps, p.command())
			continue
		}
		if n := len(*steps); n == 0 || (*steps)[n-1].Name != p.step {
			*steps = append(*steps, runs.Step{Name: p.step})
		}
		composite := &(*steps)[len(*steps)-1]
		composite.Parallel = append(composite.Parallel, p.command())
	}
}

// planTasks is the whole workload. The last ones come early enough to be hit.
func planTasks(seed uint64, c config, port int) []*task {
	a := author{rand.New(rand.NewPCG(seed, 2))}
	tasks := make([]*task, c.runs)
	for n := range tasks {
		tasks[n] = a.task(n, port)
		tasks[n].at = time.Duration(float64(c.duration) * 0.9 * float64(n) / float64(c.runs))
		tasks[n].deeds = a.deeds(tasks[n])
	}
	return tasks
}

// deeds are what operators do to one run in seven.
func (a author) deeds(t *task) []deed {
	via := func(ways ...string) string { return ways[a.IntN(len(ways))] }
	var deeds []deed
	if a.IntN(8) == 0 {
		cancel := deed{a.between(0, 15*time.Second), "cancel", via("sql", "api", "riverui")}
		deeds = append(deeds, cancel)
		if a.IntN(2) == 0 {
			deeds = append(deeds, deed{cancel.after + a.between(time.Second, 10*time.Second), "retry", via("api", "riverui")})
		}
	} else if a.IntN(20) == 0 || t.outcome == runs.Failed && a.IntN(4) == 0 {
		deeds = append(deeds, deed{a.between(0, 20*time.Second), "retry", "riverui"})
	}
	return deeds
}
