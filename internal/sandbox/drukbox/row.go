package drukbox

import (
	"encoding/json"
	"fmt"
	"time"
)

// row is a host as the control plane shows it, as far as we use it. Unknown
// fields are ignored: every release adds some.
type row struct {
	ID            string  `json:"id"`
	Name          string  `json:"name"`
	Status        string  `json:"status"`
	Host          string  `json:"external_ssh_host"`
	Port          int     `json:"external_ssh_port"`
	InternalHost  *string `json:"internal_ssh_host"`
	User          string  `json:"ssh_username"`
	KnownHosts    string  `json:"known_hosts"`
	PrivateKey    *string `json:"private_key"` // once, and never in a replay
	LastError     string  `json:"last_error"`
	CreatedAt     *stamp  `json:"created_at"`
	ExpiresAt     *stamp  `json:"expires_at"`     // nil: never
	LeaseDeadline *stamp  `json:"lease_deadline"` // no renewal goes beyond it; nil: no such limit
}

const (
	stateActive = "active"
	stateError  = "error"
)

func (r row) expired(now time.Time) bool { return r.ExpiresAt != nil && !r.ExpiresAt.After(now) }

func (r row) privateKey() string {
	if r.PrivateKey == nil {
		return ""
	}
	return *r.PrivateKey
}

// createBody asks for a host. An expires_at that is left out means the control
// plane's default, and null a host for ever: it is always there.
type createBody struct {
	Provider     string            `json:"provider,omitempty"`
	Image        string            `json:"image,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	DiskGB       int               `json:"disk_gb,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	ExpiresAt    stamp             `json:"expires_at"`
}

// stamp is a time as the control plane writes it: UTC, in microseconds.
type stamp struct{ time.Time }

func (s stamp) MarshalJSON() ([]byte, error) {
	return json.Marshal(s.UTC().Format("2006-01-02T15:04:05.000000Z"))
}

// UnmarshalJSON takes any offset, a blank instead of T, and, as the control
// plane's database may do, no offset at all for UTC.
func (s *stamp) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999"} {
		if t, err := time.Parse(layout, text); err == nil {
			s.Time = t.UTC()
			return nil
		}
	}
	return fmt.Errorf("%q is no time", text)
}
