package drukboxtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ask is HostCreate.
type ask struct {
	Image        *string           `json:"image"`
	Env          map[string]string `json:"env"`
	ExpiresAt    json.RawMessage   `json:"expires_at"`
	Provider     *string           `json:"provider"`
	InstanceType *string           `json:"instance_type"`
	DiskGB       *int              `json:"disk_gb"`

	Expires   *time.Time `json:"-"`
	Permanent bool       `json:"-"`
}

// plain requests may be given a warm host.
func (a ask) plain() bool {
	return a.Image == nil && len(a.Env) == 0 && a.InstanceType == nil && a.DiskGB == nil
}

var keyRE = regexp.MustCompile(`^[A-Za-z0-9_\-:.]+$`)

// create is POST /hosts. It goes on when its client has gone.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	a := ask{}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &a); err != nil && !json.Valid(body) { // parsed before anybody is asked who they are
			unprocessable(w, "json_invalid", "JSON decode error", "body", 0)
			return
		} else if err != nil {
			if _, ok := authorize(w, r); ok {
				unprocessable(w, "model_attributes_type", err.Error(), "body")
			}
			return
		}
	}
	who, ok := authorize(w, r)
	if !ok || !s.validate(w, r, &a) {
		return
	}
	s.work.Add(1)
	done := make(chan struct{})
	go func() {
		defer s.work.Done()
		defer close(done)
		s.provide(w, r.Header.Get("Idempotency-Key"), who, a)
	}()
	<-done // the real one, too, answers a client that has gone
}

func (s *Server) validate(w http.ResponseWriter, r *http.Request, a *ask) bool {
	if keys, given := r.Header["Idempotency-Key"]; given && (len(keys[0]) < 1 || len(keys[0]) > 255 || !keyRE.MatchString(keys[0])) {
		unprocessable(w, "string_pattern_mismatch", "String should match pattern '^[A-Za-z0-9_\\-:.]+$'", "header", "Idempotency-Key")
		return false
	}
	for field, value := range map[string]*string{"image": a.Image, "instance_type": a.InstanceType} {
		if value != nil && strings.TrimSpace(*value) == "" {
			unprocessable(w, "value_error", "Value error, must not be blank", "body", field)
			return false
		}
	}
	if a.DiskGB != nil && *a.DiskGB < 1 {
		unprocessable(w, "greater_than_equal", "Input should be greater than or equal to 1", "body", "disk_gb")
		return false
	}
	for name, value := range a.Env {
		if !envName.MatchString(name) || name == "TAILSCALE_AUTHKEY" || strings.ContainsAny(value, "#'\"\\\n") || strings.TrimSpace(value) != value || len(name)+len(value) > 8189 {
			unprocessable(w, "value_error", "Value error, env cannot be put into /etc/environment", "body", "env")
			return false
		}
	}
	switch {
	case a.ExpiresAt == nil: // the default lease
	case string(a.ExpiresAt) == "null":
		a.Permanent = true
	default:
		var text string
		at, err := time.Time{}, json.Unmarshal(a.ExpiresAt, &text)
		if err == nil {
			at, err = time.Parse(time.RFC3339Nano, text)
		}
		s.mu.Lock()
		now := s.now()
		s.mu.Unlock()
		if err != nil || !at.After(now) {
			unprocessable(w, "value_error", "Value error, expires_at must have an offset and be in the future", "body", "expires_at")
			return false
		}
		at = at.Truncate(time.Microsecond)
		a.Expires = &at
	}
	if s.opts.MaxLifetime > 0 && (a.Permanent || a.Expires != nil && a.Expires.After(time.Now().Add(s.ahead+s.opts.MaxLifetime))) {
		refuse(w, 400, "the provider keeps no host that long", "HOST_LEASE")
		return false
	}
	return true
}

func (s *Server) provide(w http.ResponseWriter, key, who string, a ask) {
	if a.Provider != nil && *a.Provider != "docker" {
		refuse(w, 400, fmt.Sprintf("unknown provider '%s'; available: docker", *a.Provider), "")
		return
	}
	s.mu.Lock()
	if c, ok := s.keys[key]; key != "" && ok && s.rows[c.id] != nil {
		defer s.mu.Unlock()
		if c.account != who {
			refuse(w, 409, "the key is another service account's", "IDEMPOTENCY_KEY_CONFLICT")
			return
		}
		answer(w, 201, s.out(s.rows[c.id], ""))
		return
	}
	host, private := s.claimPooled(a), ""
	if host == nil {
		host = s.newRow(a, who)
		s.mu.Unlock()
		var err error
		if private, err = s.provision(host); err != nil {
			refuse(w, 502, err.Error(), "PROVISIONING_FAILED")
			return
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if key != "" {
		if c, taken := s.keys[key]; taken { // another request was faster
			now := s.now()
			host.expires = &now
			if winner := s.rows[c.id]; winner != nil {
				answer(w, 201, s.out(winner, ""))
			} else {
				refuse(w, 409, "idempotency race could not be resolved", "HOST_STATE")
			}
			return
		}
		s.keys[key] = claim{host.id, who}
	}
	answer(w, 201, s.out(host, private))
}

// provision takes a row from state to state.
func (s *Server) provision(r *row) (private string, err error) {
	for _, state := range []string{Provisioning, CreatingNetwork, CreatingVM, Bootstrapping} {
		s.mu.Lock()
		r.status = state
		if state == CreatingVM && len(s.failures) > 0 {
			why := s.failures[0]
			s.failures = s.failures[1:]
			now := s.now()
			r.status, r.lastError, r.expires = Failed, why, &now
			s.mu.Unlock()
			return "", fmt.Errorf("%s", why)
		}
		delay := s.opts.Delay[state]
		s.mu.Unlock()
		time.Sleep(delay)
	}
	private, public, err := s.mint()
	if err != nil {
		return "", err
	}
	m, err := newMachine(filepath.Join(s.dir, r.id), r.user(s.opts), s.opts.Disk, public)
	if err != nil {
		return "", err
	}
	var d *door
	if s.opts.Proxied {
		if d, err = newDoor(r.id, m.port); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r.machine, r.door, r.status, r.activated = m, d, Active, &now
	s.made++
	switch end := now.Add(24 * time.Hour); {
	case r.ask.Permanent:
		r.expires = nil
	case r.ask.Expires != nil:
		r.expires = r.ask.Expires
	case r.deadline != nil && r.deadline.Before(end):
		r.expires = r.deadline
	default:
		r.expires = &end
	}
	return private, nil
}

func (s *Server) mint() (private string, public ssh.PublicKey, err error) {
	if s.opts.NoKeys {
		public, _, _, _, err = ssh.ParseAuthorizedKey([]byte(s.opts.Identity))
		return "", public, err
	}
	return keyPair()
}

func (s *Server) makePooled() (*row, error) {
	s.mu.Lock()
	r := s.newRow(ask{Permanent: true}, "admin")
	r.pooled = true
	s.mu.Unlock()
	_, err := s.provision(r) // its key goes nowhere
	return r, err
}

// claimPooled gives a warm host away.
func (s *Server) claimPooled(a ask) *row {
	if !a.plain() {
		return nil
	}
	for _, r := range s.rows {
		if r.pooled && r.status == Active {
			r.pooled, r.expires = false, a.Expires
			return r
		}
	}
	return nil
}
