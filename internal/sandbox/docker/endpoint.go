package docker

import (
	"fmt"
	"net/url"

	"github.com/moby/moby/client"
)

// endpoint is how the client reaches the daemon.
func endpoint(cfg Config) ([]client.Opt, error) {
	host := cfg.Host
	if host == "" {
		host = client.DefaultDockerHost
	}
	at, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if at.Scheme == "ssh" {
		dial, err := overSSH(at)
		if err != nil {
			return nil, err
		}
		return []client.Opt{client.WithHost("http://docker.invalid"), client.WithDialContext(dial)}, nil
	}
	options := []client.Opt{client.WithHost(host)}
	if cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" {
		options = append(options, client.WithTLSClientConfig(cfg.CAFile, cfg.CertFile, cfg.KeyFile))
	}
	return options, nil
}
