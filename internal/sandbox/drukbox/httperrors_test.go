package drukbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
)

const aHost = "0190a1b2-0000-7000-8000-000000000001"

// ops are what can be asked of a control plane.
var ops = map[string]func(context.Context, *drukbox.Provider) error{
	"create": func(ctx context.Context, p *drukbox.Provider) error {
		_, err := p.Create(ctx, sandbox.HostSpec{Key: "run:step"})
		return err
	},
	"get":    func(ctx context.Context, p *drukbox.Provider) error { _, err := p.Get(ctx, aHost); return err },
	"delete": func(ctx context.Context, p *drukbox.Provider) error { return p.Delete(ctx, aHost) },
	"list":   func(ctx context.Context, p *drukbox.Provider) error { _, err := p.List(ctx); return err },
}

// at is a provider whose control plane is something else.
func at(t testing.TB, url string, change func(*drukbox.Config)) *drukbox.Provider {
	t.Helper()
	cfg := drukbox.Config{URL: url, Token: "token", KeyDir: t.TempDir(), Log: zerolog.Nop()}
	if change != nil {
		change(&cfg)
	}
	p, err := drukbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Every row of the contract's tables, by a real answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const jsonType, unknown, notStarted = "application/json", faults.Unknown, faults.NotStarted
	detail := func(code string) string { return fmt.Sprintf(`{"detail":"d","error_code":%q}`, code) }
	for _, c := range []struct {
		ops       string
		status    int
		mediaType string
		body      string
		kind      *faults.Kind
		outcome   faults.Outcome
	}{
		{"create get delete list", 401, jsonType, `{"detail":"admin key or service account token required"}`, faults.SandboxDenied, notStarted},
		{"create get delete list", 403, jsonType, detail("SERVICE_ACCOUNT_TOKEN_REJECTED"), faults.SandboxDenied, notStarted},
		{"create get delete list", 403, jsonType, `{"detail":"service token rejected"}`, faults.SandboxDenied, notStarted},
		{"create get delete list", 503, jsonType, `{"detail":"service account tokens unavailable"}`, faults.SandboxUnavailable, unknown},
		{"create", 503, jsonType, `{"detail":"host provisioning could not be completed"}`, faults.SandboxUnavailable, unknown},
		{"create", 400, jsonType, `{"detail":"unknown provider 'x'; available: a, b"}`, faults.SandboxInvalid, notStarted},
		{"create", 400, jsonType, detail("HOST_LEASE"), faults.SandboxInvalid, notStarted},
		{"create", 400, jsonType, detail("UNKNOWN_TEMPLATE"), faults.SandboxInvalid, notStarted},
		{"create", 409, jsonType, detail("IDEMPOTENCY_KEY_CONFLICT"), faults.SandboxConflict, unknown},
		{"create", 409, jsonType, detail("HOST_STATE"), faults.SandboxProvisioning, unknown},
		{"create", 409, jsonType, detail("TEMPLATE_NOT_AVAILABLE"), faults.SandboxProvisioning, unknown},
		{"create", 409, jsonType, detail("SECRETS_PROXY_NOT_CONFIGURED"), faults.SandboxInvalid, unknown},
		{"delete", 409, jsonType, detail("HOST_STATE"), faults.SandboxConflict, unknown},
		{"create", 422, jsonType, `{"detail":[{"type":"value_error","loc":["body","expires_at"],"msg":"m"},{"type":"t","loc":[],"msg":"n"}]}`, faults.SandboxInvalid, notStarted},
		{"get delete", 422, jsonType, `{"detail":[{"type":"uuid_parsing","loc":["path","host_id"],"msg":"m"}]}`, faults.SandboxInvalid, notStarted},
		{"create", 502, jsonType, detail("PROVISIONING_FAILED"), faults.SandboxProvisioning, unknown},
		{"create get delete list", 502, "text/html", `<html><h1>502 Bad Gateway</h1><hr>nginx</html>`, faults.SandboxUnavailable, unknown},
		{"create get delete list", 502, jsonType, `{"detail":"no code"}`, faults.SandboxUnavailable, unknown},
		{"create get delete list", 504, "text/html", `<html>`, faults.SandboxUnavailable, unknown},
		{"delete", 503, jsonType, detail("HOST_TEARDOWN"), faults.SandboxUnavailable, unknown},
		{"create get delete list", 500, "text/plain", `Internal Server Error`, faults.SandboxResponse, unknown},
		{"create get delete list", 501, jsonType, detail("HTTP_PROXY_UNSUPPORTED"), faults.SandboxUnsupported, notStarted},
		{"create get delete list", 402, jsonType, `{"detail":"d"}`, faults.SandboxQuota, notStarted},
		{"create get delete list", 407, "text/html", `<html>`, faults.SandboxDenied, notStarted},
		{"create get delete list", 408, "text/html", `<html>`, faults.SandboxTimeout, unknown},
		{"create", 413, "text/html", `<html>`, faults.SandboxInvalid, notStarted},
		{"create get delete list", 507, jsonType, `{"detail":"d"}`, faults.SandboxCapacity, unknown},
		{"create get delete list", 429, "text/html", ``, faults.SandboxThrottled, notStarted},
		{"create get delete list", 302, "text/html", ``, faults.SandboxResponse, unknown},
		{"create get delete list", 418, jsonType, `[]`, faults.SandboxResponse, unknown},
		// Not found, but not by drukbox: a wrong URL deletes no host.
		{"create get delete list", 404, "text/html", `<html>`, faults.SandboxResponse, notStarted},
		{"delete", 404, "text/html", detail("NOT_FOUND") + "x", faults.SandboxResponse, notStarted},
		// A success that is none.
		{"create get list", 200, "text/html", `<html>`, faults.SandboxResponse, unknown},
		{"create get list", 201, jsonType, `"text"`, faults.SandboxResponse, unknown},
		{"create", 201, jsonType, `{}`, faults.SandboxResponse, unknown},
		{"create", 201, jsonType, `{"id":"../../etc"}`, faults.SandboxResponse, unknown},
		{"get", 200, jsonType, `{"id":"` + aHost + `","status":"active","expires_at":"soon"}`, faults.SandboxResponse, unknown},
		{"get", 200, jsonType, `{"id":"` + aHost + `","status":"error"}`, faults.SandboxNotFound, unknown},
		{"get", 200, jsonType, `{"id":"` + aHost + `","status":"creating_vm"}`, faults.SandboxUnavailable, unknown},
		{"get", 200, jsonType, `{"id":"` + aHost + `","status":"active","expires_at":"2001-01-01T00:00:00Z"}`, faults.SandboxNotFound, unknown},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", c.mediaType)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		p := at(t, server.URL, nil)
		for op := range strings.FieldsSeq(c.ops) {
			err := ops[op](t.Context(), p)
			f := faults.Of(err)
			if err == nil || f.Kind != c.kind || orUnknown(f.Outcome) != c.outcome {
				t.Errorf("%s, %d %s: %v, outcome %q, want %s, %s", op, c.status, c.body, err, f.Outcome, c.kind.Code(), c.outcome)
			}
		}
		p.Close()
		server.Close()
	}
}

func orUnknown(o faults.Outcome) faults.Outcome {
	if o == "" {
		return faults.Unknown
	}
	return o
}

// A 404 without a code is believed when the list agrees.
func TestGoneIsConfirmed(t *testing.T) {
	t.Parallel()
	for list, kind := range map[string]*faults.Kind{
		`[]`: faults.SandboxNotFound,
		`[{"id":"` + aHost + `","status":"active"}]`: faults.SandboxResponse,
		`{"detail":"Not Found"}`:                     faults.SandboxResponse,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hosts" {
				_, _ = io.WriteString(w, list)
				return
			}
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		}))
		p := at(t, server.URL, nil)
		if _, err := p.Get(t.Context(), aHost); faults.Of(err).Kind != kind {
			t.Errorf("get, list %s: %v", list, err)
		}
		if err := p.Delete(t.Context(), aHost); (err == nil) != (kind == faults.SandboxNotFound) {
			t.Errorf("delete, list %s: %v", list, err)
		}
		p.Close()
		server.Close()
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, "-1": 0, "abc": 0, "": 0, "99999999999999999999": 0, "36000": 10 * time.Hour,
		time.Now().Add(time.Minute).UTC().Format(http.TimeFormat): time.Minute,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):  0,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(503)
		}))
		p := at(t, server.URL, nil)
		_, err := p.List(t.Context())
		if got := faults.Of(err).RetryAfter; (got - want).Abs() > 2*time.Second {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
		p.Close()
		server.Close()
	}
}

// Whether a request was sent decides what is known of it.
func TestTransport(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(hold); silent.Close() })
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"id":`)
		conn, _, _ := w.(http.Hijacker).Hijack()
		_ = conn.Close()
	}))
	t.Cleanup(cut.Close)
	plain := httptest.NewTLSServer(nil)
	plain.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(plain.Close)
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	_ = l.Close()
	for name, c := range map[string]struct {
		url     string
		kind    *faults.Kind
		outcome faults.Outcome
	}{
		"refused":          {"http://" + l.Addr().String(), faults.SandboxUnavailable, faults.NotStarted},
		"no such name":     {"http://no-such-host.invalid", faults.SandboxUnavailable, faults.NotStarted},
		"not trusted":      {plain.URL, faults.SandboxUnavailable, faults.NotStarted},
		"silent":           {silent.URL, faults.SandboxTimeout, faults.Unknown},
		"cut in an answer": {cut.URL, faults.SandboxUnavailable, faults.Unknown},
	} {
		p := at(t, c.url, func(cfg *drukbox.Config) {
			if name == "silent" {
				cfg.Timeouts.Request = 300 * time.Millisecond
			}
		})
		_, err := p.List(t.Context())
		if f := faults.Of(err); err == nil || f.Kind != c.kind || orUnknown(f.Outcome) != c.outcome {
			t.Errorf("%s: %v, outcome %q", name, err, f.Outcome)
		}
	}
	// A create has no deadline but its caller's.
	p := at(t, silent.URL, func(cfg *drukbox.Config) { cfg.Timeouts.Request = 10 * time.Millisecond })
	ours := errors.New("ours")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, ours)
	defer cancel()
	if _, err := p.Create(ctx, sandbox.HostSpec{Key: "run:step"}); !errors.Is(err, ours) || faults.Classified(err) {
		t.Errorf("create: %v", err)
	}
}

// The token goes to the control plane and to nobody it points at.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	for name, op := range ops {
		if err := op(t.Context(), at(t, server.URL, nil)); !errors.Is(err, faults.SandboxResponse) || asked.Load() != 0 {
			t.Errorf("%s: %v, %d requests elsewhere", name, err, asked.Load())
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*drukbox.Config){
		"no URL":         func(c *drukbox.Config) { c.URL = "" },
		"not http":       func(c *drukbox.Config) { c.URL = "ssh://host" },
		"a password":     func(c *drukbox.Config) { c.URL = "http://user:canary@host" },
		"no token":       func(c *drukbox.Config) { c.Token = "" },
		"a broken token": func(c *drukbox.Config) { c.Token = "canary\n" },
		"no directory":   func(c *drukbox.Config) { c.KeyDir = "" },
		"a short lease":  func(c *drukbox.Config) { c.Lease = time.Second },
		"no identity":    func(c *drukbox.Config) { c.Identity = []byte("canary") },
	} {
		cfg := drukbox.Config{URL: "http://host", Token: "token", KeyDir: t.TempDir(), Log: zerolog.Nop()}
		change(&cfg)
		if _, err := drukbox.New(cfg); !errors.Is(err, faults.SandboxInvalid) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	type answer struct {
		status int
		body   []byte
	}
	var now atomic.Pointer[answer]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := now.Load()
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	}))
	f.Cleanup(server.Close)
	p := at(f, server.URL, nil)
	for _, body := range []string{``, `{}`, `[]`, `null`, `{"detail":"x","error_code":"HOST_STATE"}`, `{"detail":[{"loc":1}]}`, `{"detail":null}`, `{"id":"` + uuid.Nil.String() + `"}`, `{"detail":{},"error_code":[]}`} {
		f.Add(502, []byte(body))
		f.Add(200, []byte(body))
		f.Add(404, []byte(body))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 999 || status == 204 || status == 304 || len(body) > 64<<10 {
			t.Skip()
		}
		now.Store(&answer{status, body})
		for name, op := range ops {
			err := op(t.Context(), p)
			if err != nil && faults.Of(err).Kind == faults.Internal {
				t.Errorf("%s, %d %q: %v", name, status, body, err)
			}
			if err == nil && status/100 != 2 && !(name == "delete" && status == 404) {
				t.Errorf("%s, %d %q: it worked", name, status, body)
			}
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add(409, "HOST_STATE", "d", true)
	f.Fuzz(func(t *testing.T, status int, code, detail string, ours bool) {
		if err := drukbox.StatusFault(t.Context(), status, code, detail, ours); faults.Of(err).Kind == faults.Internal || err.Error() == "" {
			t.Errorf("%d %q: %v", status, code, err)
		}
	})
}
