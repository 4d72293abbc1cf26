// Package drukboxtest is a drukbox control plane for tests: as strict and as
// odd as the real one, in front of real hosts: OpenSSH's sshd, each in
// namespaces of its own (package bubblewrap makes them).
//
//	in-flight creates    no lock: two with one key make two hosts, and agree on one
//	replays              201, whatever state the row is in, never with a private key
//	a failed create      502 without an id, and a row in error
//	leases               by this server's clock, which a test can set ahead
//	error bodies         the four shapes, codes only where the real one has them
//	answers              hold fields that nobody knows, times in two forms
//
// What the real one does not do, it does on demand: Intercept sees every
// request first.
package drukboxtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Token opens the control plane as its administrator, OtherToken as another
// service account.
const (
	Token      = "drkb_Zm9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0LTAwMDA"
	OtherToken = "drkb_YW5vdGhlci10ZW5hbnQtaXMtaGVyZS0wMDAwMDAwMDA"
)

// Options of a control plane.
type Options struct {
	NoKeys      bool                     // no private keys are minted: hosts are opened with Identity
	Identity    string                   // the authorized key of such hosts
	Gateway     bool                     // hosts are behind a gateway: the user's name is the host's
	Pool        int                      // warm hosts, for plain requests
	Delay       map[string]time.Duration // how long a host stays in a state on its way to active
	MaxLifetime time.Duration            // of a host, from its creation; 0: none
	Internal    string                   // internal_ssh_host
	Disk        int64                    // bytes of a host's home; 0: what the machine has
	Proxied     bool                     // hosts are reached through a proxy that can be cut
	KeyTypes    []string                 // of known_hosts: ed25519, ecdsa; nil: both
}

// Server is a control plane.
type Server struct {
	*httptest.Server
	opts Options
	dir  string

	mu         sync.Mutex
	rows       map[string]*row
	keys       map[string]claim // idempotency keys
	ahead      time.Duration    // of the server's clock
	failures   []string         // what the next creates fail with
	teardowns  int              // how many of the next deletions fail
	made       int              // hosts that were ever made
	intercepts []Intercept
	requests   []string
	work       sync.WaitGroup
}

type claim struct{ id, account string }

// Intercept may answer a request itself: it returns true then.
type Intercept func(w http.ResponseWriter, r *http.Request, next http.Handler) bool

// New starts a control plane that ends with the test, and its hosts with it. A
// machine without sshd or bubblewrap fails the test.
func New(t testing.TB, opts Options) *Server {
	t.Helper()
	if _, err := os.Stat(sshd); err != nil {
		t.Fatalf("these tests need OpenSSH's server (apt-get install openssh-server): %v", err)
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatalf("these tests need bubblewrap (apt-get install bubblewrap): %v", err)
	}
	if opts.KeyTypes == nil {
		opts.KeyTypes = []string{"ecdsa", "ed25519"}
	}
	s := &Server{opts: opts, dir: t.TempDir(), rows: map[string]*row{}, keys: map[string]claim{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{"status": "ok"}) })
	mux.HandleFunc("POST /hosts", s.create)
	mux.HandleFunc("GET /hosts", s.authorized(s.list))
	mux.HandleFunc("GET /hosts/{id}", s.authorized(s.get))
	mux.HandleFunc("POST /hosts/{id}/renew", s.authorized(s.renew))
	mux.HandleFunc("DELETE /hosts/{id}", s.authorized(s.delete))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { refuse(w, 404, "Not Found", "") })
	s.Server = httptest.NewServer(s.intercepted(mux))
	for range opts.Pool {
		if _, err := s.makePooled(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Server.Close()
		s.work.Wait()
		for _, r := range s.all() {
			r.end()
		}
	})
	return s
}

func (s *Server) intercepted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		hooks := slices.Clone(s.intercepts)
		w.Header().Set("Date", time.Now().Add(s.ahead).UTC().Format(http.TimeFormat))
		s.mu.Unlock()
		for _, hook := range hooks {
			if hook(w, r, next) {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// account is whose token it is.
func account(token string) (name string, ok bool) {
	switch token {
	case Token:
		return "admin", true
	case OtherToken:
		return "other", true
	}
	return "", false
}

func authorize(w http.ResponseWriter, r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		refuse(w, 401, "admin key or service account token required", "")
		return "", false
	}
	name, ok := account(token)
	if !ok {
		refuse(w, 403, "service account token rejected", "SERVICE_ACCOUNT_TOKEN_REJECTED")
	}
	return name, ok
}

func (s *Server) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, ok := authorize(w, r); !ok {
			return
		}
		if id := r.PathValue("id"); id != "" {
			if _, err := uuid.Parse(id); err != nil {
				unprocessable(w, "uuid_parsing", "Input should be a valid UUID", "path", "host_id")
				return
			}
		}
		next(w, r)
	}
}

func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// refuse answers with the first shape, or without a code with the second.
func refuse(w http.ResponseWriter, status int, detail, code string) {
	body := map[string]any{"detail": detail}
	if code != "" {
		body["error_code"] = code
	}
	answer(w, status, body)
}

// unprocessable answers with the third shape.
func unprocessable(w http.ResponseWriter, kind, msg string, loc ...any) {
	answer(w, 422, map[string]any{"detail": []any{map[string]any{"type": kind, "loc": loc, "msg": msg}}})
}

// crash answers with the fourth shape.
func crash(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(500)
	_, _ = w.Write([]byte("Internal Server Error"))
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
