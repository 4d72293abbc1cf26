// Package docker makes hosts of containers, through the API of a Docker Engine
// (1.41 and later) that may be on this machine or on another one: nothing of the
// executor's disk is mounted, and no tool of Docker's is run but the credential
// helpers that its configuration file names.
//
//	container executor-<hash of installation and key>
//	    labels    installation, key, run, network, expires: how Create adopts,
//	              and how List finds what is ours in every state
//	    PID 1     an init that reaps, and under it a sleeping sh which made the
//	              directories as root and gave them to User
//	    /work       the working directory
//	    /executor   run/ for detached processes, home/: see package remote
//	    /tmp
//
// Processes are started by exec and speak through package remote, so that they
// outlive every connection, the executor and, with live-restore, the daemon.
//
// A container drops all capabilities but those that root needs for its own files
// and users (Capabilities), cannot gain privileges, and has no network unless the
// run asks for one. It is as isolated as the daemon's runtime makes it: a shared
// kernel with runc.
//
// A container whose init has ended is gone for us: its processes are, and it is
// never started again. With a lease it ends, and is removed, by itself; nobody has
// to come by.
//
// What the daemon says is classified in classify.go and nowhere else. The package
// imports sandbox, remote and faults, and does not read the environment.
package docker

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
)

// Pull says when an image is pulled.
type Pull string

const (
	PullMissing Pull = "missing" // when the daemon has none; the default
	PullNever   Pull = "never"
	PullAlways  Pull = "always" // before every container
)

// NetworkNone keeps even runs that ask for a network off it.
const NetworkNone = "none"

// Config of a provider.
type Config struct {
	// Host is the daemon's endpoint: unix://, tcp:// or ssh://[user@]host. The
	// last one needs ssh here and docker there. Empty: unix:///var/run/docker.sock.
	Host string
	// TLS for tcp://: three files. Empty: none.
	CAFile, CertFile, KeyFile string

	Installation string // in names and labels: whose the containers are
	Image        string // by name, tag or digest; it needs a POSIX sh and coreutils
	Pull         Pull
	Credentials  Credentials // asked at each pull; nil: none
	Shell        string      // of the image; empty: /bin/sh

	Memory       int64   // bytes, swap included; 0: no limit
	CPUs         float64 // 0: no limit
	PIDs         int64   // 0: no limit
	Disk         int64   // bytes of the container's own layer, where the daemon's storage driver can limit it; 0: no limit
	Network      string  // of runs that ask for one: NetworkNone, bridge or a network's name. Empty: bridge
	User         string  // of commands, by name or uid[:gid]; empty: the image's root
	ReadOnlyRoot bool    // only /work, /executor and /tmp can be written: volumes of the container
	Capabilities []string
	Runtime      string // of the daemon, such as runsc; empty: its default
	NoInit       bool   // the daemon has no docker-init: the sh is PID 1 and reaps

	OutputCeiling int64 // bytes of a stream's output on a container's disk; see package remote. 0: 1 GiB

	Lease time.Duration // how long a container lives; 0: until it is deleted
	Log   zerolog.Logger
}

// capabilities are what root in a container keeps: to own and change files of
// any user in it, to become such a user, and to signal its processes. Config may
// add to them.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "KILL"}

// Provider of hosts that are containers.
type Provider struct {
	cfg    Config
	client *client.Client
	log    zerolog.Logger

	progressEvery time.Duration // of a pull

	untried sync.Map // ids of containers that we made and in which nothing ran yet

	turn  chan struct{} // held by who negotiates
	ready bool
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Marker   = (*Provider)(nil)
)

// New returns a provider. It does not reach for the daemon yet: an executor
// starts without one, and says of each run that there is none.
func New(cfg Config) (*Provider, error) {
	if cfg.Installation == "" {
		return nil, errors.New("docker: an installation needs a name: its containers are found by it")
	}
	if cfg.Image == "" {
		return nil, errors.New("docker: no image")
	}
	if cfg.Disk > 0 && cfg.ReadOnlyRoot {
		return nil, errors.New("docker: a disk limit is of a container's own layer, and with a read-only root it writes to volumes only")
	}
	if cfg.Pull == "" {
		cfg.Pull = PullMissing
	}
	if cfg.Network == "" {
		cfg.Network = "bridge"
	}
	if cfg.Shell == "" {
		cfg.Shell = "/bin/sh"
	}
	options, err := endpoint(cfg)
	if err != nil {
		return nil, err
	}
	c, err := client.New(append(options, client.WithUserAgent("executor"), client.WithHTTPResponseHook(observe))...)
	if err != nil {
		return nil, err
	}
	return &Provider{cfg: cfg, client: c, log: cfg.Log, progressEvery: progressEvery, turn: make(chan struct{}, 1)}, nil
}

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return "docker" }

// MarksHosts implements sandbox.Marker: the labels do.
func (p *Provider) MarksHosts() {}

// Close lets go of idle connections to the daemon.
func (p *Provider) Close() error { return p.client.Close() }

var idRE = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Dial implements sandbox.Provider.
func (p *Provider) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !idRE.MatchString(host.ID) {
		return nil, notFound(host.ID)
	}
	if err := p.negotiate(ctx); err != nil {
		return nil, err
	}
	return &conn{remote.New(&container{provider: p, id: host.ID, patience: exitLimit},
		remote.Config{
			Shell: p.cfg.Shell, Base: baseDir, Work: workDir, Home: homeDir, Tmp: tmpDir,
			OutputCeiling: p.cfg.OutputCeiling,
		})}, nil
}

// conn is a connection to a container.
type conn struct{ *remote.Conn }

// Prepare implements sandbox.Conn. The container's own process prepares it, and
// every operation waits for that.
func (c *conn) Prepare(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func notFound(id string) error {
	return faults.Errorf(faults.SandboxNotFound, "there is no container %q", id).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}
