package drukboxtest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// States of a host, in order.
const (
	Provisioning    = "provisioning"
	CreatingNetwork = "creating_network"
	CreatingVM      = "creating_vm"
	Bootstrapping   = "bootstrapping"
	Active          = "active"
	Failed          = "error"
)

// row is a host in the control plane's database. Server.mu guards it.
type row struct {
	id, name, status, account string
	ask                       ask
	lastError                 string
	created                   time.Time
	activated, expires        *time.Time
	deadline                  *time.Time
	pooled                    bool
	moved                     int // a port that it is not at
	machine                   *machine
	door                      *door

	ended sync.Once
}

func (s *Server) newRow(a ask, account string) *row {
	id, _ := uuid.NewV7()
	random := make([]byte, 6)
	_, _ = rand.Read(random)
	r := &row{id: id.String(), name: "sb-" + hex.EncodeToString(random), status: Provisioning, account: account, ask: a, created: s.now()}
	// In flight a row lives for the safety time at least.
	end := r.created.Add(600 * time.Second)
	if a.Expires != nil && a.Expires.After(end) {
		end = *a.Expires
	}
	r.expires = &end
	if s.opts.MaxLifetime > 0 {
		deadline := r.created.Add(s.opts.MaxLifetime)
		r.deadline = &deadline
	}
	s.rows[r.id] = r
	return r
}

func (r *row) user(opts Options) string {
	if opts.Gateway {
		return r.name
	}
	return "sandbox"
}

// out is the row as HostOut. private is the key, once.
func (s *Server) out(r *row, private string) map[string]any {
	at := func(t *time.Time, zulu bool) any {
		if t == nil {
			return nil
		}
		return stamp(*t, zulu)
	}
	o := map[string]any{
		"id": r.id, "name": r.name, "status": r.status, "service_account": r.account, "provider": "docker",
		"image": "ubuntu:24.04", "instance_type": nil, "disk_gb": nil,
		"external_ssh_host": "", "external_ssh_port": 22, "ssh_username": r.user(s.opts), "internal_ssh_host": nil,
		"known_hosts": "", "tailscale_device_id": nil, "private_key": nil, "last_error": r.lastError,
		"created_at": stamp(r.created, true), "updated_at": stamp(r.created, false),
		"activated_at": at(r.activated, true), "expires_at": at(r.expires, r.created.UnixMicro()%2 == 0), "lease_deadline": at(r.deadline, false),
		"labels_of_tomorrow": map[string]any{"nobody": []any{"knows", 1, nil}},
	}
	if private != "" {
		o["private_key"] = private
	}
	if r.machine != nil {
		port := r.machine.port
		if r.door != nil {
			port = r.door.port
		}
		if r.moved != 0 {
			port = r.moved
		}
		if s.opts.Internal != "" {
			o["internal_ssh_host"] = s.opts.Internal
		}
		o["external_ssh_host"], o["external_ssh_port"] = "127.0.0.1", port
		o["known_hosts"] = r.machine.knownHosts(port, s.opts.KeyTypes...)
	}
	return o
}

// end ends the host behind a row.
func (r *row) end() {
	r.ended.Do(func() {
		if r.door != nil {
			r.door.close()
		}
		if r.machine != nil {
			r.machine.remove()
		}
	})
}

func (s *Server) all() []*row {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []*row
	for _, r := range s.rows {
		rows = append(rows, r)
	}
	return rows
}

// drop removes a row and the keys that lead to it.
func (s *Server) drop(r *row) {
	delete(s.rows, r.id)
	for key, c := range s.keys {
		if c.id == r.id {
			delete(s.keys, key)
		}
	}
}

func (r *row) String() string { return fmt.Sprintf("%s (%s)", r.id, r.status) }
