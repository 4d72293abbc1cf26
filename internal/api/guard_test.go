package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"executor/internal/api"
)

// Only names of the loopback are answered to: a page whose name was made to
// resolve to it sends its own.
func TestHost(t *testing.T) {
	f := newFront(t)
	for host, status := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "LOCALHOST": 200, "127.0.0.1": 200, "127.8.9.1:1": 200, "[::1]": 200, "[::1]:8080": 200,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
		"10.0.0.1": 421, "0.0.0.0:8080": 421, "[::]": 421, "169.254.169.254": 421,
	} {
		for _, path := range []string{"/v1/failure-codes", "/healthz", "/openapi.json"} {
			if a := f.request("GET", path, "", func(r *http.Request) { r.Host = host }); a.StatusCode != status {
				t.Errorf("%s under Host %s: got %d, want %d", path, host, a.StatusCode, status)
			} else if status == 421 {
				refused(t, a, 421)
			}
		}
	}
}

// Another origin's page can neither change nor read anything, here or in
// River UI.
func TestCrossSite(t *testing.T) {
	f := newFront(t)
	type headers map[string]string
	own := "http://" + strings.TrimPrefix(f.url, "http://")
	for _, test := range []struct {
		name   string
		method string
		headers
		refused bool
	}{
		{"a program", "POST", headers{}, false},
		{"our own page", "POST", headers{"Sec-Fetch-Site": "same-origin", "Origin": own}, false},
		{"our own page in an old browser", "POST", headers{"Origin": own}, false},
		{"another site", "POST", headers{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, true},
		{"another port", "POST", headers{"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:1"}, true},
		{"another site in an old browser", "POST", headers{"Origin": "https://evil.example"}, true},
		{"a sandboxed frame", "POST", headers{"Origin": "null"}, true},
		{"a form on another site", "POST", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, true},
		{"a fetch", "GET", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, true},
		{"a frame", "GET", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, true},
		{"a link", "GET", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, false},
		{"the address bar", "GET", headers{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			path, body := "/v1/runs", ""
			if test.method == "POST" {
				body = `{"spec": ` + hello + `}`
			}
			before := f.count()
			a := f.request(test.method, path, body, func(r *http.Request) {
				for k, v := range test.headers {
					r.Header.Set(k, v)
				}
			})
			if !test.refused {
				if a.StatusCode >= 400 {
					t.Errorf("refused: %s", a.body)
				}
				return
			}
			refused(t, a, http.StatusForbidden)
			if after := f.count(); after != before {
				t.Errorf("%d rows were written", after-before)
			}
		})
	}
	if a := f.request("OPTIONS", "/v1/runs", "", header("Origin", "https://evil.example"), header("Access-Control-Request-Method", "POST")); a.Header.Get("Access-Control-Allow-Origin") != "" || a.StatusCode < 400 {
		t.Errorf("a preflight is granted: %d %v", a.StatusCode, a.Header)
	}
}

func TestGuardStandsBeforeRiverUI(t *testing.T) {
	t.Parallel()
	reached := false
	ui := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true })
	handler := api.New(api.Config{RiverUI: ui, Log: zerolog.Nop()})
	r := httptest.NewRequest("POST", "http://localhost/riverui/api/jobs/cancel", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, r); w.Code != 403 || reached {
		t.Errorf("got %d, reached: %v", w.Code, reached)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if handler.ServeHTTP(httptest.NewRecorder(), r); !reached {
		t.Error("River UI's own page is refused")
	}
}

func TestSecurityHeaders(t *testing.T) {
	f := newFront(t)
	a := f.request("GET", "/v1/runs", "")
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestNoRoute(t *testing.T) {
	f := newFront(t)
	refused(t, f.request("GET", "/v2/runs", ""), 404)
	refused(t, f.request("GET", "/docs", ""), 404)
	if a := f.request("GET", "/v2/%2e%2e/x//y", ""); a.StatusCode >= 400 || a.Header.Get("Location") == "" || len(a.body) > 0 {
		t.Errorf("an unclean path: got %d to %q: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}
	a := f.request("DELETE", "/v1/runs", "")
	if p := refused(t, a, 405); a.Header.Get("Allow") != "GET, HEAD, POST" || !strings.Contains(p.Detail, "POST") {
		t.Errorf("got %v, %s", a.Header, a.body)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	log := &syncBuffer{}
	ui := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("gone wrong") })
	w := httptest.NewRecorder()
	api.New(api.Config{RiverUI: ui, Log: zerolog.New(log)}).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/riverui/", nil))
	if w.Code != 500 || strings.Contains(w.Body.String(), "gone wrong") || !strings.Contains(log.String(), "gone wrong") {
		t.Errorf("got %d %s; log: %s", w.Code, w.Body, log)
	}
}
