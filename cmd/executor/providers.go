package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"executor/internal/sandbox"
	"executor/internal/sandbox/docker"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/local"
)

// providing is the configuration of where hosts come from.
type providing struct {
	Providers []string `env:"EXECUTOR_PROVIDERS" default:"local" placeholder:"NAME" help:"Where hosts come from: local, docker, drukbox. The first one serves runs that name none (${default})."`
	Docker    struct {
		Host         string        `env:"EXECUTOR_DOCKER_HOST" placeholder:"URL" help:"The daemon: unix://, tcp:// or ssh://. Default: /var/run/docker.sock."`
		CAFile       string        `env:"EXECUTOR_DOCKER_CA_FILE" placeholder:"FILE" help:"For tcp:// with TLS; so are the two next."`
		CertFile     string        `env:"EXECUTOR_DOCKER_CERT_FILE" placeholder:"FILE" help:"Our certificate."`
		KeyFile      string        `env:"EXECUTOR_DOCKER_KEY_FILE" placeholder:"FILE" help:"Its key."`
		Image        string        `env:"EXECUTOR_DOCKER_IMAGE" default:"debian:bookworm-slim" placeholder:"IMAGE" help:"What containers are made of; it needs a POSIX sh and coreutils (${default})."`
		Pull         string        `env:"EXECUTOR_DOCKER_PULL" enum:"missing,never,always" default:"missing" help:"missing, never or always."`
		Config       string        `env:"EXECUTOR_DOCKER_CONFIG,DOCKER_CONFIG" default:"~/.docker" placeholder:"DIR" help:"Where Docker's own config.json is, with logins for registries and the names of credential helpers (${default})."`
		Memory       int64         `env:"EXECUTOR_DOCKER_MEMORY" placeholder:"BYTES" help:"Limit of a container; 0: none."`
		CPUs         float64       `name:"cpus" env:"EXECUTOR_DOCKER_CPUS" placeholder:"N" help:"Limit of a container; 0: none."`
		PIDs         int64         `name:"pids" env:"EXECUTOR_DOCKER_PIDS" default:"4096" placeholder:"N" help:"Limit of a container's processes; 0: none (${default})."`
		Disk         int64         `env:"EXECUTOR_DOCKER_DISK" placeholder:"BYTES" help:"Limit of what a container writes, where the daemon's storage can keep it (xfs with pquota, btrfs); 0: none."`
		Network      string        `env:"EXECUTOR_DOCKER_NETWORK" default:"bridge" placeholder:"NAME" help:"Of runs that are not offline: bridge, none or a network's name (${default})."`
		User         string        `env:"EXECUTOR_DOCKER_USER" placeholder:"USER" help:"Who runs commands; default: the image's root."`
		ReadOnlyRoot bool          `env:"EXECUTOR_DOCKER_READ_ONLY_ROOT" help:"Only the working directory, /executor and /tmp can be written."`
		Runtime      string        `env:"EXECUTOR_DOCKER_RUNTIME" placeholder:"NAME" help:"Such as runsc; default: the daemon's."`
		NoInit       bool          `env:"EXECUTOR_DOCKER_NO_INIT" help:"The daemon has no docker-init."`
		Lease        time.Duration `env:"EXECUTOR_DOCKER_LEASE" default:"24h" help:"A container ends by itself after so long (${default})."`
	} `embed:"" prefix:"docker-"`
	Drukbox struct {
		URL          string        `env:"EXECUTOR_DRUKBOX_URL" placeholder:"URL" help:"The control plane. Its token is in EXECUTOR_DRUKBOX_TOKEN."`
		Backend      string        `env:"EXECUTOR_DRUKBOX_BACKEND" placeholder:"NAME" help:"The control plane's own provider; default: its default."`
		Image        string        `env:"EXECUTOR_DRUKBOX_IMAGE" placeholder:"IMAGE" help:"Default: the control plane's."`
		InstanceType string        `env:"EXECUTOR_DRUKBOX_INSTANCE_TYPE" placeholder:"NAME" help:"Default: the control plane's."`
		DiskGB       int           `name:"disk-gb" env:"EXECUTOR_DRUKBOX_DISK_GB" placeholder:"N" help:"Default: the control plane's."`
		Lease        time.Duration `env:"EXECUTOR_DRUKBOX_LEASE" default:"2h" help:"A host is taken away so long after it was last used, unless a step needs it for longer (${default})."`
	} `embed:"" prefix:"drukbox-"`
}

func (p *providing) check() error {
	if len(p.Providers) == 0 {
		return fmt.Errorf("--providers: expected at least one of local, docker, drukbox")
	}
	for i, name := range p.Providers {
		switch {
		case !slices.Contains([]string{"local", "docker", "drukbox"}, name):
			return fmt.Errorf("--providers: expected local, docker or drukbox, got %q", name)
		case slices.Contains(p.Providers[:i], name):
			return fmt.Errorf("--providers: %q is named twice", name)
		case name == "drukbox" && p.Drukbox.URL == "":
			return fmt.Errorf("--drukbox-url (EXECUTOR_DRUKBOX_URL): expected the address of the control plane")
		}
	}
	return nil
}

// providers makes the configured providers, in their order. The local one is
// also returned by itself, where it is among them.
func (a *app) providers(ctx context.Context, cfg serving, dir, place, installation string, db *database) (all []sandbox.Provider, own *local.Provider, err error) {
	for _, name := range cfg.Providers {
		var p sandbox.Provider
		switch name {
		case "local":
			own, err = a.localProvider(ctx, cfg.isolation, filepath.Join(dir, "hosts"), place, db)
			p = own
		case "docker":
			p, err = a.dockerProvider(cfg.providing, installation)
		case "drukbox":
			p, err = a.drukboxProvider(cfg.providing, dir, place)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("provider %s: %w", name, err)
		}
		all = append(all, p)
	}
	return all, own, nil
}

func (a *app) dockerProvider(cfg providing, installation string) (*docker.Provider, error) {
	c := cfg.Docker
	return docker.New(docker.Config{
		Host: c.Host, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		Installation: installation, Image: c.Image, Pull: docker.Pull(c.Pull),
		Credentials: docker.FileCredentials(filepath.Join(expandHome(c.Config), "config.json")),
		Memory:      c.Memory, CPUs: c.CPUs, PIDs: c.PIDs, Disk: c.Disk, Network: c.Network, User: c.User, ReadOnlyRoot: c.ReadOnlyRoot,
		Runtime: c.Runtime, NoInit: c.NoInit, Lease: c.Lease, Log: a.log,
	})
}

// drukboxProvider takes the token from the environment alone: an argument
// could be seen by every user of the machine.
func (a *app) drukboxProvider(cfg providing, dir, place string) (*drukbox.Provider, error) {
	c := cfg.Drukbox
	token := os.Getenv("EXECUTOR_DRUKBOX_TOKEN")
	if token == "" {
		return nil, usagef("EXECUTOR_DRUKBOX_TOKEN: expected the token of a service account")
	}
	return drukbox.New(drukbox.Config{
		URL: c.URL, Token: token, KeyDir: filepath.Join(dir, "drukbox-keys"), Machine: place, Lease: c.Lease,
		Backend: c.Backend, Image: c.Image, InstanceType: c.InstanceType, DiskGB: c.DiskGB,
		Proxy: http.ProxyFromEnvironment, Log: a.log,
	})
}
