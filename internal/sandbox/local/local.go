// Package local makes hosts of directories on the machine that the executor
// runs on.
//
//	<root>/<hash of a key>  a link to the key's host, so that create is adopt
//	<root>/<id>/            id: the hash and a number that is never used twice
//	    host.json           what the host was made for, its limits and its cgroup
//	    work/               the working directory
//	    home/  tmp/         HOME, and /tmp where it can be private
//	    run/<launch>/       one detached process: see package sandbox
//	        lock            held by whoever starts it, then by its supervisor
//	        given           how much of its output was given back: see ceiling.go
//	<root>/.new-*           a host in the making; it appears by rename
//	<root>/.deleted-<id>    a host in deletion; it disappears by rename
//
// Processes run under bubblewrap where that works, and plainly where it does
// not: Isolation says which, and what is left open.
//
// Nothing here ties a process to the executor: it is in its own session, holds
// no pipe of ours, and its supervisor reports to the disk. Two means replace
// what a parent would know of it:
//
//   - The lock. Start takes it and the supervisor inherits it, so that it is
//     free exactly when there is no supervisor: before the first start, after a
//     start that died half-way, after the end, and after a reboot. pid is
//     written under it before the command runs. So whoever gets the lock and
//     sees no pid may start, and whoever sees pid adopts.
//   - The marks in the environment of its processes. They find a tree whose
//     parents are gone; see processes.go.
//
// A host with limits has a cgroup, below it one for each launch and each
// attached command. The command enters it, and the supervisor does not: so a
// limit cannot keep an end from being recorded. The groups find what has shed
// its marks, and tell a process that the kernel killed for memory from one that
// somebody else did.
//
// The package runs on Linux. It imports sandbox and faults, and does not read
// the environment.
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Config of a provider.
type Config struct {
	Root      string   // holds the hosts; made if missing. Not shared between machines
	Machine   string   // becomes Host.Machine
	Isolation Mode     // empty: Auto
	Bwrap     string   // path of bubblewrap; empty: looked up in Path
	Path      string   // like PATH; for the look-up only
	Hide      []string // more of the machine that bubblewrap hides from processes
	Log       zerolog.Logger

	// Limits of each host made from now on, by cgroups of version 1 or 2 below
	// CgroupParent, a path from where they are mounted on; empty: "executor".
	Limits       Limits
	CgroupParent string

	// OutputCeiling is how many bytes of a stream's output may lie on the disk
	// before its process is stopped; 0: 1 GiB. Below 80 MiB, or where the file
	// system has no holes, it limits all that a process prints. See sandbox's ceiling.go.
	OutputCeiling int64
}

// Provider of hosts that are directories.
type Provider struct {
	root      string // absolute, without symlinks: it is in every mark
	machine   string
	shell     []string
	isolation Isolation
	limiter   *limiter
	ceiling   int64
	watches   watches
	log       zerolog.Logger
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Marker   = (*Provider)(nil)
)

// MarksHosts implements sandbox.Marker: nobody else has directories in the root.
func (p *Provider) MarksHosts() {}

// New makes the root and finds out how processes can be isolated. Where Config
// insists on bubblewrap and it does not work, or has limits that the machine
// cannot keep, that is faults.SandboxUnsupported.
func New(ctx context.Context, cfg Config) (*Provider, error) {
	if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
		return nil, fault("make the root of hosts", err)
	}
	root, err := filepath.Abs(cfg.Root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fault("resolve the root of hosts", err)
	}
	p := &Provider{root: root, machine: cfg.Machine, shell: []string{"/bin/sh"}, ceiling: cfg.OutputCeiling, log: cfg.Log}
	if p.ceiling <= 0 {
		p.ceiling = sandbox.DefaultOutputCeiling
	}
	if p.limiter, err = newLimiter(ctx, cfg, p.shell); err != nil {
		return nil, err
	}
	if p.isolation, err = isolate(ctx, cfg, root); err != nil {
		return nil, err
	}
	if p.isolation.Mode == Plain {
		p.log.Warn().Str("why", p.isolation.Why).Strs("open", p.isolation.Open).
			Msg("processes of the local provider are not isolated")
	}
	p.sweep()
	return p, nil
}

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return "local" }

// Isolation says how processes of this provider are isolated.
func (p *Provider) Isolation() Isolation { return p.isolation }

// Dial implements sandbox.Provider.
func (p *Provider) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	dir, made, err := p.find(host.ID)
	if err != nil {
		return nil, err
	}
	return &conn{provider: p, dir: dir, network: made.Network, group: made.Group}, nil
}

// sweep removes what creations that died half-way have left.
func (p *Provider) sweep() {
	left, _ := filepath.Glob(filepath.Join(p.root, newPrefix+"*"))
	for _, dir := range left {
		if info, err := os.Lstat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			if err := remove(dir); err != nil {
				p.log.Warn().Err(err).Str("dir", dir).Msg("a half-made host stays")
			}
		}
	}
}

func notFound(id string) error {
	return faults.Errorf(faults.SandboxNotFound, "there is no host %q", id).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

func invalid(format string, args ...any) error {
	return faults.Errorf(faults.SandboxInvalid, format, args...).
		With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
}

var errOutlive = errors.New("processes outlive SIGKILL")

func outlived(n int) error {
	return faults.New(faults.SandboxTimeout, "end processes", fmt.Errorf("%d %w", n, errOutlive))
}
