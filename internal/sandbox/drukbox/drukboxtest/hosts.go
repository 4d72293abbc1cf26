package drukboxtest

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"
)

// list is GET /hosts: everybody's, newest first.
func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []*row
	for _, r := range s.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *row) int { return b.created.Compare(a.created) })
	out := []any{}
	for _, r := range rows {
		out = append(out, s.out(r, ""))
	}
	answer(w, 200, out)
}

// get is GET /hosts/{id}. Its 404 has no code.
func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host := s.rows[r.PathValue("id")]
	if host == nil {
		refuse(w, 404, "host not found", "")
		return
	}
	answer(w, 200, s.out(host, ""))
}

// renew is POST /hosts/{id}/renew. It never makes a host permanent.
func (s *Server) renew(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		ExpiresAt *time.Time `json:"expires_at"`
	}
	body, _ := io.ReadAll(r.Body)
	if len(body) > 0 && json.Unmarshal(body, &ask) != nil {
		unprocessable(w, "datetime_parsing", "Input should be a valid datetime", "body", "expires_at")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	host := s.rows[r.PathValue("id")]
	if host == nil {
		refuse(w, 404, "host not found", "NOT_FOUND")
		return
	}
	if host.pooled || host.status != Active && host.status != Bootstrapping {
		refuse(w, 409, "host is "+host.status, "HOST_STATE")
		return
	}
	end := s.now().Add(24 * time.Hour)
	if host.deadline != nil && host.deadline.Before(end) {
		end = *host.deadline
	}
	if ask.ExpiresAt != nil {
		if end = ask.ExpiresAt.Truncate(time.Microsecond); !end.After(s.now()) {
			unprocessable(w, "value_error", "Value error, expires_at must be in the future", "body", "expires_at")
			return
		}
		if host.deadline != nil && end.After(*host.deadline) {
			refuse(w, 400, "the provider keeps no host that long", "HOST_LEASE")
			return
		}
	}
	host.expires = &end
	answer(w, 200, s.out(host, ""))
}

// delete is DELETE /hosts/{id}. It waits until the host is down.
func (s *Server) delete(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	host := s.rows[r.PathValue("id")]
	switch {
	case host == nil:
		s.mu.Unlock()
		refuse(w, 404, "host not found", "NOT_FOUND")
		return
	case host.status == Provisioning || host.status == CreatingNetwork || host.status == CreatingVM:
		s.mu.Unlock()
		refuse(w, 409, "host is still provisioning", "HOST_STATE")
		return
	case s.teardowns > 0:
		s.teardowns--
		s.mu.Unlock()
		refuse(w, 503, "host teardown could not be completed", "HOST_TEARDOWN")
		return
	}
	s.mu.Unlock()
	host.end()
	s.mu.Lock()
	s.drop(host)
	s.mu.Unlock()
	w.WriteHeader(204)
}
