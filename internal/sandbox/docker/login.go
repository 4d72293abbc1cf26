package docker

import (
	"context"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// Login is what a registry wants to know. The zero value is nobody.
type Login struct {
	Username, Password string
	IdentityToken      string // for a token of the registry's, instead of a password
	RegistryToken      string // for the registry itself
}

// Credentials returns the login for a registry, named as images name it:
// docker.io, ghcr.io, 127.0.0.1:5000. It is asked at each pull, since tokens
// end, and once more when the registry refuses the first one. Its errors reach
// logs and users.
type Credentials func(ctx context.Context, registry string) (Login, error)

// hub is what Docker calls its own registry in logins.
const (
	hub     = "docker.io"
	hubAuth = "https://index.docker.io/v1/"
)

// login is the header of a request that pulls the image; empty for nobody. A
// daemon with containerd's image store compares the address to the registry's.
func (p *Provider) login(ctx context.Context, ref reference.Named) (string, error) {
	if p.cfg.Credentials == nil {
		return "", nil
	}
	domain := reference.Domain(ref)
	login, err := p.cfg.Credentials(ctx, domain)
	if err != nil || login == (Login{}) {
		return "", err
	}
	if domain == hub {
		domain = hubAuth
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: login.Username, Password: login.Password,
		IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken,
		ServerAddress: domain,
	})
}
