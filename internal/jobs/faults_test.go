package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"executor/internal/faults"
	"executor/internal/runs"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

const minute = time.Minute

func unavailable() error {
	return faults.New(faults.SandboxUnavailable, "create", errors.New("503 from the control plane"))
}

// A provisioning fault that passes: by the snooze path, for both kinds of
// host, every attempt under the same key.
func TestProvisioningRecovers(t *testing.T) {
	for _, mode := range []string{runs.Ephemeral, runs.Kept} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			w.fake.OnCreate(unavailable(), faults.New(faults.SandboxProvisioning, "create", nil))
			w.start(w.executor())
			id := w.enqueue(`{"sandbox": "` + mode + `", "steps": [{"name": "a", "shell": "true"}]}`)
			w.skipWaits(id, 2)
			w.await(id, state{runs.Succeeded, "", "completed"})
			want := []attempt{
				{"a", "", "failed", "sandbox_provisioning", minute},
				{"a", "", "failed", "sandbox_provisioning", 5 * minute},
				{"a", "", "succeeded", "", 0},
			}
			if diff := cmp.Diff(want, w.attempts(id)); diff != "" {
				t.Error(diff)
			}
			key := sandbox.StepKey(id.String(), "a")
			if mode == runs.Kept {
				key = sandbox.KeptKey(id.String())
			}
			for _, call := range w.fake.Calls(sandboxtest.Create) {
				if call.Key != key {
					t.Errorf("created under %q, not %q", call.Key, key)
				}
			}
			w.clean()
		})
	}
}

func TestProvisioningIsGivenUp(t *testing.T) {
	w := newWorld(t)
	w.fake.OnCreate(unavailable(), unavailable(), unavailable())
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.skipWaits(id, 2)
	w.await(id, state{runs.Failed, "sandbox_provisioning", "discarded"})
	want := []attempt{
		{"a", "", "failed", "sandbox_provisioning", minute},
		{"a", "", "failed", "sandbox_provisioning", 5 * minute},
		{"a", "", "failed", "sandbox_provisioning", 0},
	}
	if diff := cmp.Diff(want, w.attempts(id)); diff != "" {
		t.Error(diff)
	}
	last := query[string](w, `SELECT errors[cardinality(errors)] ->> 'error' FROM executor.river_job WHERE id = $1`, w.job(id))
	if !strings.HasPrefix(last, "sandbox_provisioning: ") {
		t.Errorf("the job's last error is %q", last)
	}
	causes := query[[]byte](w, `SELECT causes FROM executor.run_attempts WHERE run_id = $1 AND n = 3`, id)
	var chain []faults.Link
	if err := json.Unmarshal(causes, &chain); err != nil {
		t.Fatal(err)
	}
	codes := []string{}
	for _, link := range chain {
		codes = append(codes, link.Code)
	}
	if !slices.Equal(codes, []string{"sandbox_provisioning", "sandbox_unavailable", ""}) || chain[2].Message != "503 from the control plane" {
		t.Errorf("the chain of causes is %+v", chain)
	}
	w.clean()
}

// The job says why it waits, and until when.
func TestABackingOffJobSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.fake.OnCreate(unavailable())
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.await(id, state{runs.BackingOff, "", "scheduled"})
	row, err := w.river.JobGet(context.Background(), w.job(id))
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct {
		FailureCode string    `json:"failure_code"`
		Attempt     int       `json:"attempt"`
		RetryAt     time.Time `json:"retry_at"`
	}
	if err := json.Unmarshal(row.Metadata, &metadata); err != nil {
		t.Fatal(err)
	}
	if metadata.FailureCode != "sandbox_provisioning" || metadata.Attempt != 1 {
		t.Errorf("metadata: %s", row.Metadata)
	}
	if gap := row.ScheduledAt.Sub(metadata.RetryAt).Abs(); gap > time.Second {
		t.Errorf("the job is scheduled %v away from the run's retry_at", gap)
	}
	if row.Attempt != 0 {
		t.Errorf("the wait cost the job an attempt: %d", row.Attempt)
	}
}

// What cannot heal is tried once, without a wait, and keeps its own error.
func TestFatalFaultsAreTriedOnce(t *testing.T) {
	for _, kind := range []*faults.Kind{faults.SandboxDenied, faults.SandboxInvalid, faults.SandboxConflict, faults.SandboxUnsupported, faults.SandboxQuota, faults.SandboxResponse} {
		t.Run(kind.Code(), func(t *testing.T) {
			w := newWorld(t)
			w.fake.OnCreate(faults.New(kind, "create", errors.New("the provider's own words")))
			w.start(w.executor())
			id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
			w.await(id, state{runs.Failed, kind.Code(), "discarded"})
			if diff := cmp.Diff([]attempt{{"a", "", "failed", kind.Code(), 0}}, w.attempts(id)); diff != "" {
				t.Error(diff)
			}
			if n := len(w.fake.Calls(sandboxtest.Create)); n != 1 {
				t.Errorf("%d creates", n)
			}
			message := query[string](w, `SELECT failure_message FROM executor.run_failures WHERE id = $1`, id)
			if want := "step a: create: the provider's own words"; message != want {
				t.Errorf("message %q, want %q", message, want)
			}
		})
	}
}

// In a composite step the others go on: the wait is in process, the job stays
// running, and each member keeps its key.
func TestProvisioningRecoversInProcess(t *testing.T) {
	w := newWorld(t)
	w.fake.OnCreate(unavailable(), unavailable())
	w.start(w.executor())
	id := w.enqueue(`{"retry": {"delays": ["1s", "2s"]}, "steps": [{"name": "p", "parallel": [{"name": "a", "shell": "true"}]}]}`)
	w.await(id, state{runs.Succeeded, "", "completed"})
	want := []attempt{
		{"p", "a", "failed", "sandbox_provisioning", time.Second},
		{"p", "a", "failed", "sandbox_provisioning", 2 * time.Second},
		{"p", "a", "succeeded", "", 0},
	}
	if diff := cmp.Diff(want, w.attempts(id)); diff != "" {
		t.Error(diff)
	}
	for _, call := range w.fake.Calls(sandboxtest.Create) {
		if call.Key != sandbox.MemberKey(id.String(), "p", "a") {
			t.Errorf("created under %q", call.Key)
		}
	}
	if n := query[int](w, `SELECT count(*) FROM executor.run_events WHERE run_id = $1 AND kind = 'backing_off'`, id); n != 0 {
		t.Errorf("the run backed off %d times", n)
	}
	w.clean()
}

// A member that cannot succeed ends the step, but not before the others are
// done; what they did is not done again when an operator retries.
func TestACompositeStepKeepsWhatIsDone(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("p+bad", sandboxtest.Proc{Exit: 2}, sandboxtest.Proc{})
	w.fake.Script("p+good", sandboxtest.Proc{Stdout: "done\n"})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "p", "parallel": [{"name": "bad", "shell": "x"}, {"name": "good", "shell": "y"}]}]}`)
	w.await(id, state{runs.Failed, "command_failed", "discarded"})
	if err := w.store.Retry(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	w.await(id, state{runs.Succeeded, "", "completed"})
	want := []attempt{{"p", "bad", "failed", "command_failed", 0}, {"p", "bad", "succeeded", "", 0}, {"p", "good", "succeeded", "", 0}}
	if diff := cmp.Diff(want, w.attempts(id)); diff != "" {
		t.Error(diff)
	}
	w.clean()
}

// A quota's window is not slept through in process: the job is snoozed, and
// the finished member is not run again.
func TestAQuotaInACompositeStepIsSnoozed(t *testing.T) {
	w := newWorld(t)
	w.fake.OnStart(faults.New(faults.RateLimited, "model", nil))
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "p", "parallel": [{"name": "a", "shell": "x"}]}]}`)
	w.await(id, state{runs.BackingOff, "", "scheduled"})
	w.skipWait(id)
	w.await(id, state{runs.Succeeded, "", "completed"})
	w.clean()
}

// A panic is a bug of ours: an internal failure, not a lost run.
func TestAPanicIsInternal(t *testing.T) {
	w := newWorld(t)
	w.fake.OnStart(sandboxtest.Do(func(context.Context) error { panic("out of cheese") }))
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.await(id, state{runs.Failed, "internal", "discarded"})
	w.clean()
}

// An error that nobody classified is internal, once, with its text.
func TestAnUnknownErrorIsInternal(t *testing.T) {
	w := newWorld(t)
	w.fake.OnStart(errors.New("something odd\x00\xff"))
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.await(id, state{runs.Failed, "internal", "discarded"})
	w.clean()
}

func TestASpecThatSQLEnqueuedIsChecked(t *testing.T) {
	w := newWorld(t)
	w.start(w.executor())
	id := query[uuid.UUID](w, `SELECT executor.enqueue_run('{"steps": [{"name": "a", "shel": "x"}]}')`)
	w.await(id, state{runs.Failed, "invalid_spec", "discarded"})
	if message := query[string](w, `SELECT failure_message FROM executor.runs WHERE id = $1`, id); message != "invalid spec: steps[0].shel: there is no such field" {
		t.Errorf("message %q", message)
	}
}

// A host that vanished under a step: the next attempt gets a fresh one.
func TestAVanishedHostIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.fake.Script("a", sandboxtest.Proc{Stdout: "first\n", Hang: true}, sandboxtest.Proc{Stdout: "second\n"})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.eventually(func() bool { return len(w.fake.Started()) == 1 }, func() any { return w.fake.Started() }, "a process")
	w.fake.Vanish(sandbox.StepKey(id.String(), "a"))
	w.await(id, state{runs.BackingOff, "", "scheduled"})
	w.skipWait(id)
	w.await(id, state{runs.Succeeded, "", "completed"})
	if diff := cmp.Diff([]attempt{{"a", "", "failed", "sandbox_not_found", minute}, {"a", "", "succeeded", "", 0}}, w.attempts(id)); diff != "" {
		t.Error(diff)
	}
	if n := query[int](w, `SELECT max(n) FROM executor.run_launches WHERE run_id = $1`, id); n != 2 {
		t.Errorf("%d launches", n)
	}
	w.clean()
}

// A connection that drops in mid-step does not justify running the command
// again: the next attempt finds the process.
func TestADroppedConnectionIsPickedUp(t *testing.T) {
	w := newWorld(t)
	w.fake.OnFollow(faults.New(faults.SandboxUnavailable, "follow", nil))
	w.fake.Script("a", sandboxtest.Proc{Stdout: "once\n"})
	w.start(w.executor())
	id := w.enqueue(`{"steps": [{"name": "a", "shell": "true"}]}`)
	w.await(id, state{runs.BackingOff, "", "scheduled"})
	w.skipWait(id)
	w.await(id, state{runs.Succeeded, "", "completed"})
	if n := len(w.fake.Started()); n != 1 {
		t.Errorf("%d starts", n)
	}
	if got := query[string](w, `SELECT string_agg(convert_from(data, 'UTF8'), '' ORDER BY seq) FROM executor.run_output WHERE run_id = $1`, id); got != "once\n" {
		t.Errorf("output %q", got)
	}
	w.clean()
}
