// Package drukbox makes hosts with a drukbox control plane: an HTTP service
// that brokers VMs and containers, and hands out SSH coordinates.
//
//	control plane (HTTP)    create, look up, renew, delete: api.go, create.go, lease.go
//	host (SSH)              commands, files, detached processes: dial.go, conn.go
//	KeyDir (our disk)       what the control plane says once or never: keydir.go
//
// What the control plane does not keep for us, and what follows:
//
//   - A private key is handed out once, in the answer that made the host. It is
//     written to KeyDir before the host is used, so that such a host can be
//     reached from this machine only. A host whose answer was lost is of no
//     use: it is deleted and made anew.
//   - The idempotency key is recorded after the host was made. Two creates at
//     the same time make two hosts, and then agree on one; a lock in KeyDir
//     spares this machine that.
//   - It never says which key a host was made for, and any token sees every
//     tenant's hosts. A host is ours if KeyDir or the ledger says so. The
//     exact microsecond that a create asked for as the end of its lease tells
//     a host whose answer was lost: see KeyDir's intents.
//   - A create that failed leaves a row in state error and does not name it.
//     That row is the control plane's to remove, unless it is certainly ours:
//     see failed.go.
//
// Every host has a lease, so that nothing is kept for ever whatever happens
// here. It ends by the control plane's clock; Host.ExpiresAt is by ours.
//
// A host of drukbox has a network; HostSpec.Network cannot take it away.
//
// The package imports sandbox and faults, and does not read the environment.
package drukbox

import (
	"context"
	"fmt"
	"net/url"
	"regexp"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/crypto/ssh"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Provider of hosts at a drukbox control plane.
type Provider struct {
	cfg      Config
	api      *api
	keys     keyDir
	identity ssh.Signer // nil: none
	log      zerolog.Logger
}

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.KeyRemover = (*Provider)(nil)
	_ sandbox.Renewer    = (*Provider)(nil)
)

// New checks the configuration and makes KeyDir. It does not talk to the
// control plane.
func New(cfg Config) (*Provider, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" || base.User != nil {
		// The URL itself is not shown: it may hold a password.
		return nil, faults.Errorf(faults.SandboxInvalid, "drukbox: the URL has to be http:// or https://, with a host and without a user")
	}
	if !tokenRE.MatchString(cfg.Token) {
		return nil, faults.Errorf(faults.SandboxInvalid, "drukbox: the token is empty, or no header can carry it")
	}
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Lease < leaseMargin {
		return nil, faults.Errorf(faults.SandboxInvalid, "drukbox: a lease of %s is too short to be renewed in time; %s is the least", cfg.Lease, leaseMargin)
	}
	cfg.Timeouts = cfg.Timeouts.orDefault()
	keys, err := newKeyDir(cfg.KeyDir)
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, keys: keys, log: cfg.Log, api: newAPI(base, cfg)}
	if len(cfg.Identity) > 0 {
		if p.identity, err = ssh.ParsePrivateKey(cfg.Identity); err != nil {
			return nil, faults.Errorf(faults.SandboxInvalid, "drukbox: the identity is no private key that can be used")
		}
	}
	return p, nil
}

var tokenRE = regexp.MustCompile(`^[\x21-\x7e]+$`)

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return "drukbox" }

// Close lets go of idle connections to the control plane.
func (p *Provider) Close() { p.api.http.CloseIdleConnections() }

// Get implements sandbox.Provider. A row that is in error, or whose lease is
// over, is no host any more, though the control plane may still show it.
func (p *Provider) Get(ctx context.Context, id string) (sandbox.Host, error) {
	row, err := p.live(ctx, "look up host", id)
	if err != nil {
		return sandbox.Host{}, err
	}
	return p.host(row), nil
}

// live returns the row of a host that can be used.
func (p *Provider) live(ctx context.Context, op, id string) (row, error) {
	if !validID(id) {
		return row{}, notFound(id)
	}
	r, err := p.get(ctx, op, id)
	switch {
	case err != nil:
		return row{}, err
	case r.Status == stateError:
		return row{}, faults.New(faults.SandboxNotFound, op, fmt.Errorf("host %s failed at the control plane", id))
	case r.expired(p.api.now()):
		return row{}, faults.New(faults.SandboxNotFound, op, fmt.Errorf("the lease of host %s ended at %s", id, r.ExpiresAt))
	case r.Status != stateActive:
		return row{}, faults.New(faults.SandboxUnavailable, op, fmt.Errorf("host %s is not ready: %s", id, r.Status))
	}
	return r, nil
}

// get returns a row in whatever state.
func (p *Provider) get(ctx context.Context, op, id string) (row, error) {
	r, err := p.api.get(ctx, id)
	if err != nil {
		return row{}, p.orGone(ctx, op, id, err)
	}
	return r, nil
}

// Delete implements sandbox.Provider. While the control plane is still making
// the host it refuses: faults.SandboxConflict, and a later call will do.
func (p *Provider) Delete(ctx context.Context, id string) error {
	const op = "delete host"
	if !validID(id) {
		return nil
	}
	err := p.orGone(ctx, op, id, p.api.delete(ctx, id))
	if faults.Classified(err) && faults.Of(err).Kind == faults.SandboxNotFound {
		return nil
	}
	return err
}

// List implements sandbox.Provider: every host that the token can see, other
// tenants' among them. Key is set where the host is certainly ours. It also
// forgets the private keys of hosts that are not shown any more: another
// machine may have deleted them.
func (p *Provider) List(ctx context.Context) ([]sandbox.Host, error) {
	const op = "list hosts"
	rows, err := p.api.list(ctx)
	if err != nil {
		return nil, fault(ctx, op, err)
	}
	intents := p.keys.intents()
	hosts := make([]sandbox.Host, 0, len(rows))
	shown := map[string]bool{}
	for _, r := range rows {
		shown[r.ID] = true
		h := p.host(r)
		if h.Key == "" && r.ExpiresAt != nil {
			h.Key = intents[r.ExpiresAt.UnixMicro()]
		}
		hosts = append(hosts, h)
	}
	if err := p.keys.sweep(shown, p.api.now()); err != nil {
		p.log.Warn().Err(err).Msg("private keys of hosts that are gone stay")
	}
	return hosts, nil
}

// RemoveKey implements sandbox.KeyRemover.
func (p *Provider) RemoveKey(_ context.Context, host sandbox.Host) error {
	if validID(host.ID) {
		if err := p.keys.remove(host.ID); err != nil {
			return err
		}
	}
	if host.Key == "" {
		return nil
	}
	return p.keys.forget(host.Key)
}

// host is a row as the rest of the program sees it.
func (p *Provider) host(r row) sandbox.Host {
	h := sandbox.Host{ID: r.ID, Key: p.keys.owner(r.ID), Provider: p.Name()}
	if r.ExpiresAt != nil {
		h.ExpiresAt = p.api.ours(r.ExpiresAt.Time)
	}
	if p.keys.has(r.ID) {
		h.Machine = p.cfg.Machine
	}
	return h
}

// validID reports whether id can be a host's. Ids become paths, of URLs and of
// files.
func validID(id string) bool {
	_, err := uuid.Parse(id)
	return err == nil && len(id) == 36
}

func notFound(id string) error {
	return faults.Errorf(faults.SandboxNotFound, "there is no host %q", id).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

func invalid(format string, args ...any) error {
	return faults.Errorf(faults.SandboxInvalid, format, args...).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}
