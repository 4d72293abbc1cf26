package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"executor/internal/runs"
)

func TestSubmit(t *testing.T) {
	f := newFront(t)
	a := f.request("POST", "/v1/runs", `{"spec": {"name": "n", "steps": [{"name": "a", "argv": ["true"], "timeout": "1h30m"}]},
		"queue": "big", "priority": 3, "scheduled_at": "2090-01-02T03:04:05Z"}`)
	run := decode[runs.Summary](t, a, http.StatusCreated)
	if got, want := a.Header.Get("Location"), "/v1/runs/"+run.ID.String(); got != want {
		t.Errorf("Location: got %q, want %q", got, want)
	}
	if run.Status != runs.Queued || run.Name != "n" {
		t.Errorf("got %s", a.body)
	}
	var queue, state, at string
	var priority int
	if err := f.store.Pool().QueryRow(t.Context(), `
		SELECT queue, state, to_char(scheduled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), priority
		FROM executor.river_job WHERE id = $1`, run.JobID).Scan(&queue, &state, &at, &priority); err != nil {
		t.Fatal(err)
	}
	if queue != "big" || state != "scheduled" || at != "2090-01-02 03:04:05" || priority != 3 {
		t.Errorf("got job %q %q %q %d", queue, state, at, priority)
	}
	if got := f.request("GET", "/v1/runs/"+run.ID.String(), ""); !strings.Contains(string(got.body), `"timeout":"1h30m0s"`) {
		t.Errorf("the spec is not read back: %s", got.body)
	}
}

// Every way to get a submission wrong is refused with the field's name, and
// leaves nothing behind.
func TestSubmitRefuses(t *testing.T) {
	f := newFront(t)
	const step = `{"name": "a", "shell": "true"}`
	key := func(k string) string { return `{"spec": ` + hello + `, "idempotency_key": ` + k + `}` }
	spec := func(s string) string { return `{"spec": ` + s + `}` }
	for _, test := range []struct {
		name, body string
		status     int
		locations  string
	}{
		{"nothing", ``, 400, ""},
		{"no JSON", `hello`, 400, "body"},
		{"cut off", `{"spec": {"steps": [`, 400, "body.spec.steps"},
		{"two documents", spec(hello) + `{}`, 400, "body"},
		{"invalid UTF-8", "{\"spec\": {\"name\": \"\xff\", \"steps\": [" + step + "]}}", 400, "body.spec.name"},
		{"a lone surrogate", spec(`{"name": "\ud800", "steps": [` + step + `]}`), 400, "body.spec.name"},
		{"the same name twice", `{"spec": ` + hello + `, "spec": ` + hello + `}`, 400, "body.spec"},
		{"the same name twice, deep", spec(`{"steps": [{"name": "a", "name": "b", "shell": "true"}]}`), 400, "body.spec.steps[0].name"},
		{"an array", `[]`, 422, "body"},
		{"null", `null`, 422, "body.spec"},
		{"spec without its wrapper", hello, 422, "body.steps"},
		{"unknown field", `{"spec": ` + hello + `, "Queue": "q"}`, 422, "body.Queue"},
		{"unknown field, deep", spec(`{"steps": [{"name": "a", "shell": "true", "retries": 3}]}`), 422, "body.spec.steps[0].retries"},
		{"wrong type", `{"spec": ` + hello + `, "queue": 7}`, 422, "body.queue"},
		{"wrong type, deep", spec(`{"steps": [{"name": "a", "argv": "true"}]}`), 422, "body.spec.steps[0].argv"},
		{"a spec that is a string", spec(`"steps"`), 422, "body.spec"},
		{"a spec that is null", spec(`null`), 422, "body.spec.steps"},
		{"a bad duration", spec(`{"steps": [{"name": "a", "shell": "true", "timeout": "soon"}]}`), 422, "body.spec.steps[0].timeout"},
		{"several things", spec(`{"sandbox": "x", "steps": [` + step + `, ` + step + `]}`), 422, "body.spec.sandbox body.spec.steps[1].name"},
		{"NUL in an argument", spec(`{"steps": [{"name": "a", "argv": ["a\u0000b"]}]}`), 422, "body.spec.steps[0].argv[0]"},
		{"a path that leaves", spec(`{"steps": [{"name": "a", "shell": "true", "files": [{"path": "a/../../b"}]}]}`), 422, "body.spec.steps[0].files[0].path"},

		{"empty key", key(`""`), 422, "body.idempotency_key"},
		{"blank key", key(`" "`), 422, "body.idempotency_key"},
		{"tab key", key(`"\t"`), 422, "body.idempotency_key"},
		{"non-breaking blank key", key(`"\u00a0"`), 422, "body.idempotency_key"},
		{"long key", key(strconv.Quote(strings.Repeat("k", 300))), 422, "body.idempotency_key"},
		{"NUL key", key(`"a\u0000b"`), 422, "body.idempotency_key"},
		{"empty queue", `{"spec": ` + hello + `, "queue": ""}`, 422, "body.queue"},
		{"queue with a blank", `{"spec": ` + hello + `, "queue": "a b"}`, 422, "body.queue"},
		{"priority 0", `{"spec": ` + hello + `, "priority": 0}`, 422, "body.priority"},
		{"priority 2^40", `{"spec": ` + hello + `, "priority": 1099511627776}`, 422, "body.priority"},
		{"priority 2^70", `{"spec": ` + hello + `, "priority": 1180591620717411303424}`, 422, "body.priority"},
		{"priority 1.5", `{"spec": ` + hello + `, "priority": 1.5}`, 422, "body.priority"},
		{"no time", `{"spec": ` + hello + `, "scheduled_at": "tomorrow"}`, 422, "body.scheduled_at"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := refused(t, f.request("POST", "/v1/runs", test.body, header("Content-Type", "application/json")), test.status)
			if got := p.locations(); got != test.locations {
				t.Errorf("locations: got %q, want %q (%+v)", got, test.locations, p.Errors)
			}
		})
	}
	for _, test := range []struct{ name, key string }{
		{"empty", ""}, {"blank", " "}, {"long", strings.Repeat("k", 300)}, {"not UTF-8", "\xff"},
	} {
		t.Run("header: "+test.name, func(t *testing.T) {
			p := refused(t, f.request("POST", "/v1/runs", spec(hello), header("Idempotency-Key", test.key)), 422)
			if p.locations() != "header.Idempotency-Key" {
				t.Errorf("got %+v", p)
			}
		})
	}
	t.Run("NUL where bytes are welcome", func(t *testing.T) { // Postgres's text has none
		refused(t, f.request("POST", "/v1/runs", spec(`{"steps": [{"name": "a", "shell": "cat", "stdin": "\u0000"}]}`)), 422)
		refused(t, f.request("POST", "/v1/runs", spec(`{"steps": [{"name": "a", "shell": "cat", "files": [{"path": "f", "content": "\u0000"}]}]}`)), 422)
	})
	t.Run("no spec at all", func(t *testing.T) {
		if p := refused(t, f.request("POST", "/v1/runs", `{"queue": "q"}`), 422); p.Errors[0].Message != "expected a spec" {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("two keys", func(t *testing.T) {
		refused(t, f.request("POST", "/v1/runs", key(`"a"`), header("Idempotency-Key", "b")), 422)
		refused(t, f.request("POST", "/v1/runs", spec(hello), func(r *http.Request) {
			r.Header.Set("Idempotency-Key", "a")
			r.Header.Add("Idempotency-Key", "b")
		}), 422)
	})
	for _, ct := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", ";"} {
		t.Run("content type "+ct, func(t *testing.T) {
			refused(t, f.request("POST", "/v1/runs", spec(hello), header("Content-Type", ct)), http.StatusUnsupportedMediaType)
		})
	}
	t.Run("more bytes than are read", func(t *testing.T) {
		body := spec(`{"name": "` + strings.Repeat("x", runs.MaxSpecBytes+64<<10) + `"}`)
		refused(t, f.request("POST", "/v1/runs", body), http.StatusRequestEntityTooLarge)
	})
	t.Run("more bytes than a spec has", func(t *testing.T) {
		p := refused(t, f.request("POST", "/v1/runs", spec(`{"name": "`+strings.Repeat("x", runs.MaxSpecBytes)+`"}`)), 422)
		if p.locations() != "body.spec" {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("more problems than anybody reads", func(t *testing.T) {
		a := f.request("POST", "/v1/runs", spec(`{"steps": [`+strings.Repeat(`{},`, 99)+`{}]}`))
		if p := refused(t, a, 422); len(p.Errors) != 100 {
			t.Errorf("got %d problems: %s", len(p.Errors), p.Detail)
		}
	})
	if n := f.count(); n != 0 {
		t.Errorf("%d rows of refused runs and their jobs", n)
	}
}

// What a caller sends may be secret; a refusal does not repeat it, nor does
// the log.
func TestSubmitRepeatsNoSecret(t *testing.T) {
	f := newFront(t)
	const canary = "hunter2hunter2"
	for _, body := range []string{
		`{"spec": {"env": {"A": "` + canary + `\u0000"}, "steps": [{"name": "a", "shell": "true", "stdin": "` + canary + `", "timeout": 1}]}}`,
		`{"spec": {"env": {"A": "` + canary + `"}, "steps": []}}`,
		`{"spec": {"env": {"A": "` + canary + `"}`,
		`{"spec": {"env": ["` + canary + `"]}}`,
	} {
		a := f.request("POST", "/v1/runs?q="+canary, body)
		if a.StatusCode < 400 || a.StatusCode > 499 || strings.Contains(string(a.body), canary) {
			t.Errorf("status %d: %s", a.StatusCode, a.body)
		}
	}
	run := f.submit(`{"env": {"A": "` + canary + `"}, "steps": [{"name": "a", "shell": "true", "env": {"B": "` + canary + `"},
		"stdin": "` + canary + `", "files": [{"path": "f", "content": "` + canary + `"}]}]}`)
	a := f.request("GET", "/v1/runs/"+run.ID.String(), "")
	if decode[runs.Detail](t, a, 200); strings.Contains(string(a.body), canary) {
		t.Errorf("the run shows a secret: %s", a.body)
	}
	if log := f.log.String(); strings.Contains(log, canary) || !strings.Contains(log, `"path":"/v1/runs"`) {
		t.Errorf("log: %s", log)
	}
}

func TestIdempotencyKey(t *testing.T) {
	f := newFront(t)
	body := `{"spec": ` + hello + `, "idempotency_key": "ké"}`
	first := decode[runs.Summary](t, f.request("POST", "/v1/runs", body), http.StatusCreated)
	again := f.request("POST", "/v1/runs", `{"spec": `+hello+`}`, header("Idempotency-Key", "ké"))
	if got := decode[runs.Summary](t, again, http.StatusOK); got.ID != first.ID || again.Header.Get("Location") != "/v1/runs/"+first.ID.String() {
		t.Errorf("a repeated key names %s and %s", first.ID, got.ID)
	}
	other := `{"spec": {"steps": [{"name": "other", "shell": "true"}]}, "idempotency_key": "ké"}`
	refused(t, f.request("POST", "/v1/runs", other), http.StatusConflict)
	if n := f.count(); n != 2 {
		t.Errorf("%d rows of runs and jobs", n)
	}
}

func TestIdempotencyKeyAtOnce(t *testing.T) {
	f := newFront(t)
	answers := make([]answer, 8)
	var wait sync.WaitGroup
	for i := range answers {
		wait.Go(func() { answers[i] = f.request("POST", "/v1/runs", `{"spec": `+hello+`, "idempotency_key": "k"}`) })
	}
	wait.Wait()
	statuses := map[int]int{}
	for _, a := range answers {
		statuses[a.StatusCode]++
	}
	if statuses[201] != 1 || statuses[200] != len(answers)-1 || f.count() != 2 {
		t.Errorf("got %v, %d rows", statuses, f.count())
	}
}
