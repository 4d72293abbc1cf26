package drukboxtest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// What a test does to the control plane and to hosts behind its back.

// Intercept adds a hook that sees every request first.
func (s *Server) Intercept(hook Intercept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercepts = append(s.intercepts, hook)
}

// FailCreate makes the next create fail: 502, and a row in error.
func (s *Server) FailCreate(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, why)
}

// FailTeardown makes the next n deletions fail: 503, and the row stays.
func (s *Server) FailTeardown(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.teardowns = n
}

// SetAhead sets the server's clock ahead of the real one.
func (s *Server) SetAhead(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = d
}

// SetStatus sets the state of a row.
func (s *Server) SetStatus(id, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[id].status = status
}

// SetExpires sets the end of a row's lease, from the server's now on.
func (s *Server) SetExpires(id string, in time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.now().Add(in).Truncate(time.Microsecond)
	s.rows[id].expires = &at
}

// Janitor is one round of the job that removes what is expired. A row in an
// early state is left alone until its safety time is over.
func (s *Server) Janitor() {
	for _, r := range s.all() {
		s.mu.Lock()
		gone := r.expires != nil && !r.expires.After(s.now())
		s.mu.Unlock()
		if gone {
			r.end()
			s.mu.Lock()
			s.drop(r)
			s.mu.Unlock()
		}
	}
}

// Row is what a test may want to know of a host.
type Row struct {
	ID, Status string
	Pooled     bool      // nobody's yet
	Expires    time.Time // zero: never
}

// Rows returns every row, newest first.
func (s *Server) Rows() []Row {
	rows := s.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(rows, func(a, b *row) int { return b.created.Compare(a.created) })
	var out []Row
	for _, r := range rows {
		row := Row{ID: r.id, Status: r.status, Pooled: r.pooled}
		if r.expires != nil {
			row.Expires = *r.expires
		}
		out = append(out, row)
	}
	return out
}

// Made is the number of hosts that were ever made.
func (s *Server) Made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// Requests are the method and path of every request so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Server) row(t testing.TB, id string) *row {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[id]
	if r == nil || r.machine == nil {
		t.Fatalf("there is no host %s", id)
	}
	return r
}

// Freeze stops a host's sshd, so that it holds its connections and is silent.
// The function it returns wakes it.
func (s *Server) Freeze(t testing.TB, id string) (thaw func()) {
	m := s.row(t, id).machine
	m.signal(syscall.SIGSTOP)
	return func() { m.signal(syscall.SIGCONT) }
}

// Processes counts the processes in a host, sshd's own aside.
func (s *Server) Processes(t testing.TB, id string) int {
	t.Helper()
	_, others := s.row(t, id).machine.processes()
	return len(others)
}

// CutAll drops the connections of every host and of the control plane. New ones
// can be made.
func (s *Server) CutAll() {
	s.CloseClientConnections()
	for _, d := range s.doors() {
		d.cut()
		_ = d.mend()
	}
}

// FreezeAll is Freeze for every host and for the control plane.
func (s *Server) FreezeAll() (thaw func()) {
	frozen := make(chan struct{})
	s.Intercept(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		select {
		case <-frozen:
			return false
		case <-r.Context().Done():
			return true
		}
	})
	signal := func(sig syscall.Signal) {
		for _, r := range s.all() {
			s.mu.Lock()
			m := r.machine
			s.mu.Unlock()
			if m != nil {
				m.signal(sig)
			}
		}
	}
	signal(syscall.SIGSTOP)
	return sync.OnceFunc(func() { close(frozen); signal(syscall.SIGCONT) })
}

func (s *Server) doors() (doors []*door) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.door != nil {
			doors = append(doors, r.door)
		}
	}
	return doors
}

// Reinstall gives a host other host keys than the control plane knows of, as
// a machine that took its address would have.
func (s *Server) Reinstall(t testing.TB, id string) {
	t.Helper()
	m := s.row(t, id).machine
	m.kill()
	if _, err := m.makeHostKeys(); err != nil {
		t.Fatal(err)
	}
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
}

// Kill ends a host, and leaves its row as it is.
func (s *Server) Kill(t testing.TB, id string) { s.row(t, id).machine.kill() }

// LockOut takes the authorized key from a host.
func (s *Server) LockOut(t testing.TB, id string) {
	t.Helper()
	if err := s.row(t, id).machine.write("authorized_keys", "", 0o644); err != nil {
		t.Fatal(err)
	}
}

// Break makes a host's gateway unable to open a session; Mend undoes it.
func (s *Server) Break(t testing.TB, id string) {
	t.Helper()
	if err := s.row(t, id).machine.write("broken", "", 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cut drops a host's connections and refuses new ones, until Mend.
func (s *Server) Cut(t testing.TB, id string) { s.row(t, id).door.cut() }

// Mend undoes Cut and Break.
func (s *Server) Mend(t testing.TB, id string) {
	t.Helper()
	r := s.row(t, id)
	_ = os.Remove(filepath.Join(r.machine.dir, "etc", "broken"))
	if r.door != nil {
		if err := r.door.mend(); err != nil {
			t.Log("mend:", err)
		}
	}
}

// Slow delays and chops what comes from a host.
func (s *Server) Slow(t testing.TB, id string) {
	t.Helper()
	if err := s.row(t, id).door.slow(); err != nil {
		t.Fatal(err)
	}
}

// Limit closes each of a host's connections after that many bytes from it.
func (s *Server) Limit(t testing.TB, id string, bytes int) {
	t.Helper()
	if err := s.row(t, id).door.limit(bytes); err != nil {
		t.Fatal(err)
	}
}

// Address is where a host's sshd listens.
func (s *Server) Address(t testing.TB, id string) string {
	return fmt.Sprintf("127.0.0.1:%d", s.row(t, id).machine.port)
}

// Move makes the control plane say that a host is at another port.
func (s *Server) Move(t testing.TB, id string, port int) {
	r := s.row(t, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.moved = port
}

// BreakRenewals makes the next n renewals fail without a word.
func (s *Server) BreakRenewals(n int) {
	s.Intercept(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n == 0 || !strings.HasSuffix(r.URL.Path, "/renew") {
			return false
		}
		n--
		crash(w)
		return true
	})
}

// NewIdentity makes a key pair for Options.Identity.
func NewIdentity(t testing.TB) (private, public string) {
	t.Helper()
	private, key, err := keyPair()
	if err != nil {
		t.Fatal(err)
	}
	return private, string(ssh.MarshalAuthorizedKey(key))
}
