package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"executor/internal/faults"
	"executor/internal/runs"
)

func TestGetRun(t *testing.T) {
	f := newFront(t)
	run := f.submit(hello)
	got := decode[runs.Detail](t, f.request("GET", "/v1/runs/"+run.ID.String(), ""), 200)
	if got.ID != run.ID || len(got.Spec.Steps) != 1 || got.Spec.Steps[0].Name != "hello" || len(got.Events) != 1 || got.Steps == nil || got.Hosts == nil {
		t.Errorf("got %+v", got)
	}
}

func TestEachRouteOfARunRefusesItsAbsence(t *testing.T) {
	f := newFront(t)
	for _, route := range []string{"GET /v1/runs/%s", "POST /v1/runs/%s/cancel", "POST /v1/runs/%s/retry"} {
		method, path, _ := strings.Cut(route, " ")
		t.Run(route, func(t *testing.T) {
			refused(t, f.request(method, fmt.Sprintf(path, uuid.New()), ""), 404)
			for _, id := range []string{"1", "%20", "%09", "%00", "a'--", strings.Repeat("a", 300), uuid.NewString() + "0"} {
				if p := refused(t, f.request(method, fmt.Sprintf(path, id), ""), 422); p.locations() != "path.id" {
					t.Errorf("id %q: got %+v", id, p)
				}
			}
		})
	}
}

func TestCancelAndRetry(t *testing.T) {
	f := newFront(t)
	run := f.submit(hello)
	path := "/v1/runs/" + run.ID.String()
	if p := refused(t, f.request("POST", path+"/retry", ""), http.StatusConflict); !strings.Contains(p.Detail, "queued") {
		t.Errorf("got %+v", p)
	}
	for range 2 { // a second cancel changes nothing
		got := decode[runs.Summary](t, f.request("POST", path+"/cancel", ""), http.StatusOK)
		if got.Status != runs.Cancelled || got.FinishedAt == nil {
			t.Errorf("got %+v", got)
		}
	}
	if got := decode[runs.Summary](t, f.request("POST", path+"/retry", ""), http.StatusOK); got.Status != runs.Queued {
		t.Errorf("got %+v", got)
	}
}

func TestListRuns(t *testing.T) {
	f := newFront(t)
	if body := string(f.request("GET", "/v1/runs", "").body); !strings.Contains(body, `"runs":[]`) || strings.Contains(body, "next") {
		t.Errorf("no runs: got %s", body)
	}
	// All of one transaction, and so of one time.
	var want []uuid.UUID
	err := pgx.BeginFunc(t.Context(), f.store.Pool(), func(tx pgx.Tx) error {
		for range 5 {
			spec, err := runs.ParseSpec([]byte(hello))
			if err != nil {
				return err
			}
			id, err := f.store.Enqueue(t.Context(), tx, spec, runs.Options{})
			if err != nil {
				return err
			}
			want = append(want, id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	newest := f.submit(hello).ID
	decode[runs.Summary](t, f.request("POST", "/v1/runs/"+newest.String()+"/cancel", ""), 200)

	type page struct {
		Runs []runs.Summary
		Next string
	}
	list := func(path string) (ids []uuid.UUID, next string) {
		p := decode[page](t, f.request("GET", path, ""), 200)
		for _, r := range p.Runs {
			ids = append(ids, r.ID)
		}
		return ids, p.Next
	}
	var got []uuid.UUID
	for path := "/v1/runs?limit=2"; path != ""; {
		ids, next := list(path)
		got, path = append(got, ids...), next
		if len(got) > 10 {
			t.Fatal("the pages do not end")
		}
	}
	slices.SortFunc(want, func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	if want = append([]uuid.UUID{newest}, want...); !slices.Equal(got, want) {
		t.Errorf("pages:\n got %v\nwant %v", got, want)
	}
	if ids, _ := list("/v1/runs?status=cancelled"); len(ids) != 1 || ids[0] != newest {
		t.Errorf("cancelled: got %v", ids)
	}
	if ids, next := list("/v1/runs?status=queued&limit=3"); len(ids) != 3 || !strings.Contains(next, "status=queued") {
		t.Errorf("queued: got %v, next %q", ids, next)
	}
	if ids, _ := list("/v1/runs?failure_code=command_failed"); len(ids) != 0 {
		t.Errorf("failed: got %v", ids)
	}
}

func TestListRunsRefuses(t *testing.T) {
	f := newFront(t)
	for query, location := range map[string]string{
		"status=done":                         "query.status",
		"failure_code=%00":                    "query.failure_code",
		"failure_code=a'+OR+1=1":              "query.failure_code",
		"limit=0":                             "query.limit",
		"limit=501":                           "query.limit",
		"limit=99999999999999999999":          "query.limit",
		"before=yesterday":                    "query.before",
		"before_id=1":                         "query.before_id",
		"sort=(CASE+WHEN+1=1+THEN+id+END)":    "query.sort",
		"status=failed&failure_code=x&page=2": "query.page",
	} {
		if p := refused(t, f.request("GET", "/v1/runs?"+query, ""), 422); p.locations() != location {
			t.Errorf("%s: got %+v", query, p)
		}
	}
}

func TestFailureCodes(t *testing.T) {
	f := newFront(t)
	type code struct {
		Code, Family, Policy, Meaning string
		Inherited                     bool
	}
	got := decode[struct {
		Codes []code `json:"failure_codes"`
	}](t, f.request("GET", "/v1/failure-codes", ""), 200).Codes
	if len(got) != len(faults.Kinds()) {
		t.Errorf("got %d codes, want %d", len(got), len(faults.Kinds()))
	}
	want := code{"sandbox_lost", "sandbox", "transient 60 s, 300 s", faults.SandboxLost.Doc(), true}
	if !slices.Contains(got, want) {
		t.Errorf("%+v is not in %+v", want, got)
	}
}

// An error that nobody foresaw says nothing but its id, and that is in the log.
func TestUnforeseenError(t *testing.T) {
	f := newFront(t)
	if _, err := f.store.Pool().Exec(t.Context(), `ALTER TABLE executor.runs RENAME COLUMN crashes TO hidden_column`); err != nil {
		t.Fatal(err)
	}
	for _, a := range []answer{
		f.request("GET", "/v1/runs", ""),
		f.request("GET", "/v1/runs/"+uuid.NewString(), ""),
		f.request("POST", "/v1/runs", `{"spec": `+hello+`}`),
	} {
		p := refused(t, a, 500)
		id, ok := strings.CutPrefix(p.Instance, "urn:uuid:")
		if log := f.log.String(); !ok || !strings.Contains(log, id) || !strings.Contains(log, "crashes") {
			t.Errorf("%q is not in the log: %s", p.Instance, log)
		}
		if body := string(a.body); strings.Contains(body, "crashes") || strings.Contains(body, "SQLSTATE") {
			t.Errorf("the answer says too much: %s", body)
		}
	}
	if n := f.count(); n != 0 {
		t.Errorf("%d rows were half-written", n)
	}
}
