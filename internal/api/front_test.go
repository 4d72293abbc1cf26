package api_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"executor/internal/api"
	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

const hello = `{"steps": [{"name": "hello", "shell": "echo hi"}]}`

// front is the API over a database of the test's own.
type front struct {
	t     *testing.T
	store *runs.Store
	url   string
	log   *syncBuffer
}

func newFront(t *testing.T, checks ...api.Check) *front {
	t.Helper()
	t.Parallel()
	f := &front{t: t, store: runstest.New(t), log: &syncBuffer{}}
	server := httptest.NewServer(api.New(api.Config{Store: f.store, Checks: checks, Log: zerolog.New(f.log), Version: "v1.2.3"}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// answer is a response, read to its end.
type answer struct {
	*http.Response
	body []byte
}

// request sends what edit made of a request with a JSON body.
func (f *front) request(method, path, body string, edit ...func(*http.Request)) answer {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(req)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{resp, data}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = []string{value} }
}

// submit enqueues the spec through the API.
func (f *front) submit(spec string) runs.Summary {
	f.t.Helper()
	a := f.request("POST", "/v1/runs", `{"spec": `+spec+`}`)
	return decode[runs.Summary](f.t, a, http.StatusCreated)
}

func (f *front) count() (n int) {
	f.t.Helper()
	if err := f.store.Pool().QueryRow(f.t.Context(), `
		SELECT (SELECT count(*) FROM executor.runs) + (SELECT count(*) FROM executor.river_job)`).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// decode reads the answer, which must have the status.
func decode[T any](t *testing.T, a answer, status int) (v T) {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("got status %d, want %d: %s", a.StatusCode, status, a.body)
	}
	dec := json.NewDecoder(bytes.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// problem is what a refusal must look like.
type problem struct {
	Status   int
	Title    string
	Detail   string
	Instance string
	Errors   []struct {
		Location, Message string
		Value             any // of parameters only
	}
}

func refused(t *testing.T, a answer, status int) problem {
	t.Helper()
	p := decode[problem](t, a, status)
	if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type: got %q", ct)
	}
	if p.Status != status || p.Title != http.StatusText(status) || p.Detail == "" {
		t.Errorf("not a problem document for %d: %s", status, a.body)
	}
	return p
}

func (p problem) locations() string {
	var all []string
	for _, e := range p.Errors {
		all = append(all, e.Location)
	}
	return strings.Join(all, " ")
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
