package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/registry"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

var someID = strings.Repeat("0a", 32)

// fakeDaemon is for what a real one cannot be made to say. It agrees on a
// version, and leaves the rest to handler.
func fakeDaemon(t *testing.T, handler http.HandlerFunc, change ...func(*Config)) *Provider {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !pingOrVersion(w, r) {
			handler(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return open(t, append(change, func(c *Config) { c.Host = strings.Replace(server.URL, "http", "tcp", 1) })...)
}

func pingOrVersion(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case strings.HasSuffix(r.URL.Path, "/_ping"):
		w.Header().Set("Api-Version", "1.47")
	case strings.HasSuffix(r.URL.Path, "/version"):
		reply(w, 200, map[string]string{"ApiVersion": "1.47", "MinAPIVersion": "1.24"})
	default:
		return false
	}
	return true
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, status int) {
	reply(w, status, map[string]string{"message": "some text"})
}

func TestVersions(t *testing.T) {
	for name, daemon := range map[string]http.HandlerFunc{
		"1.38": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.38") },
		"1.99": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.99")
			if strings.HasSuffix(r.URL.Path, "/version") {
				reply(w, 400, map[string]string{"message": "client version is too old. Minimum supported API version is 1.90"})
			}
		},
	} {
		server := httptest.NewServer(daemon)
		defer server.Close()
		p := open(t, func(c *Config) { c.Host = strings.Replace(server.URL, "http", "tcp", 1) })
		_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
		f := faults.Of(err)
		if f == nil || f.Kind != faults.SandboxUnsupported || f.Outcome != faults.NotStarted || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), minAPI) {
			t.Errorf("%s: %v, want sandbox_unsupported with both versions", name, err)
		}
	}
}

// Whoever waits for a daemon that does not answer keeps nobody who has less time.
func TestNobodyWaitsForAnother(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool, 9), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- true
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(answer)
	p := open(t, func(c *Config) { c.Host = strings.Replace(server.URL, "http", "tcp", 1) })
	patient, leave := context.WithTimeout(t.Context(), 30*time.Second)
	gone := make(chan error)
	go func() { _, err := p.Get(patient, someID); gone <- err }()
	<-asked
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, enough)
	defer cancel()
	began := time.Now()
	if err := p.Delete(ctx, someID); !errors.Is(err, enough) || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	leave()
	if err := <-gone; err == nil {
		t.Error("it was answered")
	}
}

func TestPullFailures(t *testing.T) {
	inBand := func(code int) string {
		return fmt.Sprintf(`{"status":"Pulling from x","id":"latest"}`+"\n"+`{"errorDetail":{"code":%d,"message":"some text"},"error":"some text"}`+"\n", code)
	}
	for name, test := range map[string]struct {
		status    int    // of the request to pull
		stream    string // its body, where the status is 200
		registry  int    // what a look at the registry says
		kind      *faults.Kind
		permanent bool
	}{
		"not found":                {status: 404, kind: faults.SandboxImage, permanent: true},
		"unauthorized":             {status: 401, kind: faults.SandboxImage, permanent: true},
		"denied":                   {status: 403, kind: faults.SandboxImage, permanent: true},
		"too many":                 {status: 429, kind: faults.SandboxThrottled},
		"bad reference":            {status: 400, kind: faults.SandboxInvalid},
		"broken":                   {status: 500, registry: 500, kind: faults.SandboxImage},
		"broken, and denied":       {status: 500, registry: 401, kind: faults.SandboxImage, permanent: true},
		"broken, and too many":     {status: 500, registry: 429, kind: faults.SandboxThrottled},
		"broken, and there":        {status: 500, registry: 200, kind: faults.SandboxImage},
		"in band, not found":       {status: 200, stream: inBand(404), kind: faults.SandboxImage, permanent: true},
		"in band, denied":          {status: 200, stream: inBand(403), kind: faults.SandboxImage, permanent: true},
		"in band, too many":        {status: 200, stream: inBand(429), kind: faults.SandboxThrottled},
		"in band, broken":          {status: 200, stream: inBand(500), kind: faults.SandboxImage},
		"without code, not found":  {status: 200, stream: inBand(0), registry: 404, kind: faults.SandboxImage, permanent: true},
		"without code, denied":     {status: 200, stream: inBand(0), registry: 403, kind: faults.SandboxImage, permanent: true},
		"without code, too many":   {status: 200, stream: inBand(0), registry: 429, kind: faults.SandboxThrottled},
		"without code, broken":     {status: 200, stream: inBand(0), registry: 500, kind: faults.SandboxImage},
		"without code, there":      {status: 200, stream: inBand(0), registry: 200, kind: faults.SandboxImage},
		"the stream is cut":        {status: 200, stream: `{"status":"Pulling`, kind: faults.SandboxUnavailable},
		"the stream is no stream":  {status: 200, stream: `<html>`, kind: faults.SandboxResponse},
		"it ends, and there is no": {status: 200, stream: `{"status":"Done"}`, kind: faults.SandboxImage, permanent: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/containers/create"):
					refuse(w, 404)
				case strings.HasSuffix(r.URL.Path, "/images/create") && test.status == 200:
					io.WriteString(w, test.stream)
				case strings.HasSuffix(r.URL.Path, "/images/create"):
					refuse(w, test.status)
				case strings.Contains(r.URL.Path, "/distribution/"):
					refuse(w, test.registry)
				default:
					t.Errorf("%s %s", r.Method, r.URL)
				}
			}, func(c *Config) {
				c.Pull = PullMissing
				c.Image = "registry.invalid/some/image@sha256:" + strings.Repeat("0", 64)
			})
			_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
			if f := faults.Of(err); f == nil || f.Kind != test.kind || f.Permanent != test.permanent {
				t.Errorf("%v, want %s, permanent %t", err, test.kind.Code(), test.permanent)
			}
		})
	}
}

func TestPullPolicies(t *testing.T) {
	for policy, want := range map[Pull]string{
		PullNever:   "create",
		PullMissing: "create pull create start",
		PullAlways:  "pull create start",
	} {
		var calls []string
		pulled := false
		p := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/containers/create"):
				calls = append(calls, "create")
				if !pulled {
					refuse(w, 404)
					return
				}
				reply(w, 201, map[string]string{"Id": someID})
			case strings.HasSuffix(r.URL.Path, "/images/create"):
				calls = append(calls, "pull")
				pulled = true
			case strings.HasSuffix(r.URL.Path, "/start"):
				calls = append(calls, "start")
				w.WriteHeader(204)
			}
		}, func(c *Config) { c.Pull = policy })
		_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
		if got := strings.Join(calls, " "); got != want {
			t.Errorf("%s: %s, want %s", policy, got, want)
		}
		if f := faults.Of(err); policy == PullNever && (f == nil || f.Kind != faults.SandboxImage || !f.Permanent) || policy != PullNever && err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

// A registry's token ends: the second login counts.
func TestLoginAgain(t *testing.T) {
	var logins atomic.Int32
	p := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
		auth := registryAuth(t, r)
		if auth.Password != "2" || auth.Username != "user" || auth.ServerAddress != "registry.invalid" {
			refuse(w, 401)
		}
	}, func(c *Config) {
		c.Image = "registry.invalid/image"
		c.Credentials = func(_ context.Context, registry string) (Login, error) {
			return Login{Username: "user", Password: fmt.Sprint(logins.Add(1))}, nil
		}
	})
	if err := p.pull(t.Context()); err != nil || logins.Load() != 2 {
		t.Errorf("%v after %d logins", err, logins.Load())
	}
}

func registryAuth(t *testing.T, r *http.Request) (auth registry.AuthConfig) {
	t.Helper()
	content, err := base64.URLEncoding.DecodeString(r.Header.Get(registry.AuthHeader))
	if err == nil {
		err = json.Unmarshal(content, &auth)
	}
	if err != nil {
		t.Error(err)
	}
	return auth
}

func TestRemovalInProgress(t *testing.T) {
	var calls atomic.Int32
	p := fakeDaemon(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 4 {
			refuse(w, 409)
			return
		}
		refuse(w, 404)
	})
	if err := p.Delete(t.Context(), someID); err != nil || calls.Load() != 4 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
	calls.Store(-1000)
	err := p.Delete(limited(t), someID)
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxConflict {
		t.Errorf("while its deadline lasts: %v", err)
	}
}

// What the client reads as exit status 0 may be no status at all.
func TestExitStatus(t *testing.T) {
	type state struct {
		Running  bool
		Pid      int
		ExitCode *int
	}
	for name, test := range map[string]struct {
		states []state
		code   int
		kind   *faults.Kind
	}{
		"late":             {states: []state{{}, {Running: true, Pid: 7}, {Running: true, Pid: 7}, {Pid: 7, ExitCode: new(7)}}, code: 7},
		"zero":             {states: []state{{Pid: 7, ExitCode: new(0)}}},
		"did not start":    {states: []state{{}, {ExitCode: new(127)}}, code: 127},
		"none":             {states: []state{{}}, kind: faults.SandboxLost},
		"running for ever": {states: []state{{Running: true, Pid: 7}}, kind: faults.SandboxLost},
		"forgotten":        {kind: faults.SandboxLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			states := test.states
			p := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if len(states) == 0 {
					refuse(w, 404)
					return
				}
				reply(w, 200, states[0])
				if len(states) > 1 {
					states = states[1:]
				}
			})
			c := &container{provider: p, id: someID, patience: 300 * time.Millisecond}
			code, ran, err := c.status(t.Context(), "exec")
			if ran != (err == nil && name != "did not start") {
				t.Errorf("ran: %t", ran)
			}
			if code != test.code || (err != nil) != (test.kind != nil) || err != nil && faults.Of(err).Kind != test.kind {
				t.Errorf("%d, %v", code, err)
			}
		})
	}
}
