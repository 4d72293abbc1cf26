package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

const (
	doctorDir     = "doctor-*"
	doctorLimit   = 10 * time.Minute // of a provider, which may have to pull an image or to boot a machine
	attachLimit   = time.Minute
	doctorLeft    = time.Hour // after which what is left of a doctor has none any more
	doctorScript  = "echo one; sleep 0.2; echo two"
	doctorPrinted = "one\ntwo\n"
)

// checkProvider takes a host of one provider through its life. It has a root of
// its own: hosts and keys of runs are not touched, and what a killed doctor left
// behind is found by the next. Hosts that are elsewhere have a lease.
func (c *doctorCmd) checkProvider(ctx context.Context, a *app, db *database, d *diagnosis, name string) {
	ctx, cancel := context.WithTimeoutCause(ctx, doctorLimit, fmt.Errorf("it took longer than %s", doctorLimit))
	defer cancel()
	p := &patient{name: name, ledger: &memoryLedger{}, launch: sandbox.Launch{RunID: uuid.NewString(), Step: "doctor", N: 1}}
	if len(c.Providers) > 1 {
		p.title = name + ": "
	}
	defer func() { _ = os.RemoveAll(p.root) }()
	if !d.try(p.title+"provider", func() (detail string, err error) {
		if p.root, err = a.doctorRoot(ctx); err != nil {
			return "", err
		}
		if p.provider, err = c.provider(ctx, a, db, name, p.root); err != nil {
			return "", err
		}
		own, ok := p.provider.(*local.Provider)
		if !ok {
			return name, nil
		}
		i := own.Isolation()
		d.Isolation, d.Open = string(i.Mode), i.Open
		if i.Mode == local.Plain {
			return "local, processes are not isolated: " + i.Why, nil
		}
		return "local, isolated by " + i.Bwrap, nil
	}) {
		return
	}
	p.client = sandbox.NewClient(sandbox.DefaultTimeouts(), a.log, p.provider)
	if name != "local" && !d.try(p.title+"reach", func() (string, error) {
		_, err := p.client.List(ctx)
		return "it answers, and lets us in", err
	}) {
		return
	}
	p.live(ctx, d)
}

// provider makes the provider as doctor and its other process use it.
func (c *doctorCmd) provider(ctx context.Context, a *app, db *database, name, root string) (sandbox.Provider, error) {
	cfg := c.providing
	for _, lease := range []*time.Duration{&cfg.Docker.Lease, &cfg.Drukbox.Lease} {
		if *lease <= 0 || *lease > doctorLeft {
			*lease = doctorLeft
		}
	}
	switch name {
	case "docker":
		return a.dockerProvider(cfg, "doctor")
	case "drukbox":
		return a.drukboxProvider(cfg, root, "doctor")
	}
	return a.localProvider(ctx, c.isolation, root, "doctor", db)
}

// doctorRoot makes a root, and clears away those that were left behind.
func (a *app) doctorRoot(ctx context.Context) (string, error) {
	dir, err := a.dataDir()
	if err != nil {
		return "", err
	}
	left, _ := filepath.Glob(filepath.Join(dir, doctorDir)) // the pattern is good
	for _, old := range left {
		if info, err := os.Stat(old); err == nil && time.Since(info.ModTime()) > doctorLeft {
			clearRoot(ctx, a, old)
		}
	}
	return os.MkdirTemp(dir, doctorDir)
}

func clearRoot(ctx context.Context, a *app, root string) {
	provider, err := local.New(ctx, local.Config{Root: root, Machine: "doctor", Isolation: local.Plain, Log: a.log})
	if err != nil {
		return
	}
	hosts, _ := provider.List(ctx)
	for _, h := range hosts {
		_ = provider.Delete(ctx, h.ID)
	}
	_ = os.RemoveAll(root)
}

// patient is the host that doctor looks at.
type patient struct {
	name     string // of its provider
	title    string // before the names of its checks
	root     string // of local hosts, and of the keys of others
	provider sandbox.Provider
	client   *sandbox.Client
	ledger   *memoryLedger
	launch   sandbox.Launch
	box      *sandbox.Sandbox
}

// live takes it from creation to deletion.
func (p *patient) live(ctx context.Context, d *diagnosis) {
	made := d.try(p.title+"provision", func() (detail string, err error) {
		p.box, err = p.client.Acquire(ctx, p.ledger, p.name, sandbox.HostSpec{
			Key: sandbox.StepKey(p.launch.RunID, p.launch.Step), RunID: p.launch.RunID,
		})
		if err != nil {
			return "", err
		}
		return "a host was created, reached and prepared", nil
	})
	if !made {
		// Its maker may have failed half-way.
		for _, left := range p.ledger.live() {
			d.try(p.title+"release", func() (string, error) {
				return "what there was of the host is gone", p.client.Delete(context.WithoutCancel(ctx), p.ledger, left)
			})
		}
		return
	}
	defer p.box.Close()
	// It is released whatever fails before.
	defer d.try(p.title+"release", func() (string, error) { return p.release(context.WithoutCancel(ctx)) })
	started := d.try(p.title+"exec", func() (string, error) { return p.exec(ctx) }) &&
		d.try(p.title+"start", func() (string, error) {
			_, err := p.box.Start(ctx, p.launch, sandbox.Command{Argv: []string{"/bin/sh", "-c", doctorScript}})
			return "a detached process runs", err
		})
	if started {
		d.try(p.title+"re-attach", func() (string, error) { return p.reattach(ctx) })
	}
}

func (p *patient) exec(ctx context.Context) (string, error) {
	var out bytes.Buffer
	exit, err := p.box.Exec(ctx, sandbox.Command{Argv: []string{"/bin/sh", "-c", "echo hello"}}, sandbox.Stdio{Out: &out})
	if err == nil && (!exit.Success() || out.String() != "hello\n") {
		err = fmt.Errorf("a command printed %q and ended with %d: %w", out.String(), exit.Code, errDoctor)
	}
	return "a command ran and answered", err
}

func (p *patient) release(ctx context.Context) (string, error) {
	if err := p.client.Delete(ctx, p.ledger, p.box.Entry()); err != nil {
		return "", fmt.Errorf("host %s: %w", p.box.Host().ID, err)
	}
	if _, err := p.provider.Get(ctx, p.box.Host().ID); !errors.Is(err, faults.SandboxNotFound) {
		return "", fmt.Errorf("host %s is still there: %w", p.box.Host().ID, errors.Join(errDoctor, err))
	}
	return "the host and its processes are gone", nil
}

// reattach lets another process of this program follow ours to its end.
func (p *patient) reattach(ctx context.Context) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, attachLimit)
	defer cancel()
	// With the flags that we were given.
	cmd := exec.CommandContext(ctx, self, append(slices.Clone(os.Args[1:]),
		"--attach-run", p.launch.RunID, "--attach-provider", p.name, "--attach-root", p.root, "--attach-host", p.box.Host().ID)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	var seen attached
	if err := json.Unmarshal(out.Bytes(), &seen); err != nil {
		return "", err
	}
	if seen.Exit != 0 || seen.Output != doctorPrinted {
		return "", fmt.Errorf("it read %q and exit status %d: %w", seen.Output, seen.Exit, errDoctor)
	}
	return fmt.Sprintf("process %d read all of its output and its exit status", cmd.Process.Pid), nil
}

// attaching makes a doctor the other process.
type attaching struct {
	Run      string `hidden:""`
	Provider string `hidden:""`
	Root     string `hidden:""`
	Host     string `hidden:""`
}

// attached is what it saw.
type attached struct {
	Output string
	Exit   int
}

func (c *doctorCmd) attach(ctx context.Context, a *app) error {
	to := c.Attach
	provider, err := c.provider(ctx, a, nil, to.Provider, to.Root)
	if err != nil {
		return err
	}
	host, err := provider.Get(ctx, to.Host)
	if err != nil {
		return err
	}
	conn, err := provider.Dial(ctx, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	var out bytes.Buffer
	exit, err := conn.Follow(ctx, sandbox.Launch{RunID: to.Run, Step: "doctor", N: 1}, sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
		out.Write(data)
		return nil
	})
	if err != nil {
		return err
	}
	return a.printJSON(attached{out.String(), exit.Code})
}

// memoryLedger is a ledger for hosts that no run has: they do not outlive
// this process.
type memoryLedger struct {
	mu      sync.Mutex
	entries []sandbox.Entry
}

// live is the hosts that may be there.
func (l *memoryLedger) live() (entries []sandbox.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.State != "" {
			entries = append(entries, e)
		}
	}
	return entries
}

// Reserve is sandbox.Ledger's.
func (l *memoryLedger) Reserve(_ context.Context, provider string, key sandbox.Key) (sandbox.Entry, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Key == key && e.State != "" {
			return e, true, nil
		}
	}
	e := sandbox.Entry{ID: int64(len(l.entries)), Key: key, Provider: provider, State: sandbox.Creating}
	l.entries = append(l.entries, e)
	return e, false, nil
}

// Created is sandbox.Ledger's.
func (l *memoryLedger) Created(_ context.Context, id int64, host sandbox.Host) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.entries[id]
	e.HostID, e.Machine, e.State = host.ID, host.Machine, sandbox.Active
	return nil
}

// Releasing is sandbox.Ledger's.
func (l *memoryLedger) Releasing(_ context.Context, id int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[id].State == "" {
		return sandbox.ErrReleased
	}
	l.entries[id].State = sandbox.Releasing
	return nil
}

// Released is sandbox.Ledger's.
func (l *memoryLedger) Released(_ context.Context, id int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[id].State = "" // closed
	return nil
}
