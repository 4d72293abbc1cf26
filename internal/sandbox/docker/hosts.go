package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Labels of a container.
const (
	labelInstallation = "executor.installation"
	labelKey          = "executor.key"
	labelRun          = "executor.run"
	labelNetwork      = "executor.network"
	labelExpires      = "executor.expires" // RFC 3339
)

const (
	pollMin = 20 * time.Millisecond
	pollMax = time.Second
)

// errAgain says that a container under the name went away, or will.
var errAgain = errors.New("the container is being removed")

func (p *Provider) containerName(key sandbox.Key) string {
	sum := sha256.Sum256([]byte(p.cfg.Installation + "\x00" + string(key)))
	return "executor-" + hex.EncodeToString(sum[:16])
}

// Create implements sandbox.Provider. The name is the guard: of several who
// create, one does and the others find it. Each starts what it got, since its
// maker may have died before it could; starting what runs is nothing.
func (p *Provider) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	const op = "create container"
	if ctx.Err() != nil {
		return sandbox.Host{}, context.Cause(ctx)
	}
	if spec.Key == "" {
		return sandbox.Host{}, faults.Errorf(faults.SandboxInvalid, "a host needs a key").
			With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	}
	if spec.Network && p.cfg.Network == NetworkNone {
		return sandbox.Host{}, faults.Errorf(faults.SandboxUnsupported, "the configuration gives no container a network").
			With(func(f *faults.Fault) { f.Outcome = faults.NotStarted })
	}
	if err := p.negotiate(ctx); err != nil {
		return sandbox.Host{}, err
	}
	pulled := false
	if p.cfg.Pull == PullAlways {
		if err := p.pull(ctx); err != nil {
			return sandbox.Host{}, err
		}
		pulled = true
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ctx, seen := observed(ctx)
		options := p.options(spec)
		made, err := p.client.ContainerCreate(ctx, options)
		switch {
		case err == nil:
			host := p.host(made.ID, options.Config.Labels)
			err := p.start(ctx, made.ID, true)
			if err == nil {
				p.untried.Store(made.ID, true)
			}
			return host, err
		case errdefs.IsNotFound(err) && !pulled && p.cfg.Pull != PullNever:
			if err := p.pull(ctx); err != nil {
				return sandbox.Host{}, err
			}
			pulled = true
			continue
		case errdefs.IsNotFound(err): // of what a create names only the image can be missing
			return sandbox.Host{}, missingImage(op, err)
		case !errdefs.IsConflict(err):
			if p.cfg.Disk > 0 && seen.status == http.StatusInternalServerError && p.madeUnlimited(ctx, options) {
				return sandbox.Host{}, noDiskLimit(op, p.cfg.Disk, err)
			}
			return sandbox.Host{}, p.fault(ctx, op, seen, err, faults.SandboxImage)
		}
		host, err := p.adopt(ctx, *options.Config, options.Name)
		if !errors.Is(err, errAgain) {
			return host, err
		}
		if err := sleep(ctx, pause); err != nil {
			return sandbox.Host{}, err
		}
	}
}

// adopt takes the container that has the name, if it was made for the same.
// errAgain: there is none any more, or there will not be.
func (p *Provider) adopt(ctx context.Context, want api.Config, name string) (sandbox.Host, error) {
	const op = "adopt container"
	ctx, seen := observed(ctx)
	found, err := p.client.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return sandbox.Host{}, errAgain
	}
	if err != nil {
		return sandbox.Host{}, p.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	c := found.Container
	for _, label := range []string{labelInstallation, labelKey, labelNetwork} {
		if c.Config == nil || c.Config.Labels[label] != want.Labels[label] {
			return sandbox.Host{}, faults.New(faults.SandboxConflict, op,
				errors.New("the container "+name+" was made for something else, by its label "+label))
		}
	}
	host := p.host(c.ID, c.Config.Labels)
	switch state(c) {
	case api.StateRunning:
		return host, nil
	case api.StateCreated:
		return host, p.start(ctx, c.ID, false)
	case api.StatePaused, api.StateRestarting:
		return sandbox.Host{}, faults.New(faults.SandboxConflict, op, errors.New("the container is "+string(state(c))))
	case api.StateRemoving:
		return sandbox.Host{}, errAgain
	}
	if err := p.Delete(ctx, c.ID); err != nil { // it has ended, and is of no use
		return sandbox.Host{}, err
	}
	return sandbox.Host{}, errAgain
}

// start starts a container. Ours that does not start is removed.
func (p *Provider) start(ctx context.Context, id string, ours bool) error {
	const op = "start container"
	ctx, seen := observed(ctx)
	_, err := p.client.ContainerStart(ctx, id, client.ContainerStartOptions{})
	if err == nil {
		return nil
	}
	if errdefs.IsNotFound(err) && !ours {
		return errAgain
	}
	err = p.fault(ctx, op, seen, err, faults.SandboxInvalid) // a network that it names
	if ours {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if gone := p.Delete(after, id); gone != nil {
			p.log.Warn().Err(gone).Str("container", id).Msg("a container that did not start stays; it is listed")
			var f *faults.Fault
			if errors.As(err, &f) {
				f.Outcome = faults.Unknown
			}
		}
	}
	return err
}

// Get implements sandbox.Provider. A container that has ended is gone.
func (p *Provider) Get(ctx context.Context, id string) (sandbox.Host, error) {
	const op = "look up container"
	if ctx.Err() != nil {
		return sandbox.Host{}, context.Cause(ctx)
	}
	c, err := p.inspect(ctx, op, id)
	if err != nil {
		return sandbox.Host{}, err
	}
	if c.Config == nil || c.Config.Labels[labelInstallation] != p.cfg.Installation {
		return sandbox.Host{}, notFound(id)
	}
	if err := ended(op, c); err != nil {
		return sandbox.Host{}, err
	}
	return p.host(c.ID, c.Config.Labels), nil
}

func (p *Provider) inspect(ctx context.Context, op, id string) (api.InspectResponse, error) {
	if !idRE.MatchString(id) {
		return api.InspectResponse{}, notFound(id)
	}
	if err := p.negotiate(ctx); err != nil {
		return api.InspectResponse{}, err
	}
	ctx, seen := observed(ctx)
	found, err := p.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return api.InspectResponse{}, p.fault(ctx, op, seen, err, faults.SandboxNotFound)
	}
	return found.Container, nil
}

// List implements sandbox.Provider: containers in every state, those included
// that were never started, have ended or cannot be removed.
func (p *Provider) List(ctx context.Context) ([]sandbox.Host, error) {
	const op = "list containers"
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := p.negotiate(ctx); err != nil {
		return nil, err
	}
	ctx, seen := observed(ctx)
	found, err := p.client.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", labelInstallation+"="+p.cfg.Installation),
	})
	if err != nil {
		return nil, p.fault(ctx, op, seen, err, faults.SandboxResponse)
	}
	hosts := make([]sandbox.Host, 0, len(found.Items))
	for _, c := range found.Items {
		hosts = append(hosts, p.host(c.ID, c.Labels))
	}
	return hosts, nil
}

// Delete implements sandbox.Provider. Somebody else's removal is waited for.
func (p *Provider) Delete(ctx context.Context, id string) error {
	const op = "remove container"
	if !idRE.MatchString(id) {
		return nil
	}
	p.untried.Delete(id)
	if err := p.negotiate(ctx); err != nil {
		return err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ctx, seen := observed(ctx)
		_, err := p.client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err):
			return p.fault(ctx, op, seen, err, faults.SandboxNotFound)
		}
		if late := sleep(ctx, pause); late != nil {
			return classify(op, *seen, err, faults.SandboxNotFound)
		}
	}
}

func (p *Provider) host(id string, labels map[string]string) sandbox.Host {
	expires, _ := time.Parse(time.RFC3339, labels[labelExpires]) // zero where there is none
	return sandbox.Host{ID: id, Key: sandbox.Key(labels[labelKey]), Provider: p.Name(), ExpiresAt: expires}
}

func (p *Provider) labels(spec sandbox.HostSpec, now time.Time) map[string]string {
	labels := map[string]string{
		labelInstallation: p.cfg.Installation,
		labelKey:          string(spec.Key),
		labelRun:          spec.RunID,
		labelNetwork:      strconv.FormatBool(spec.Network),
	}
	if p.cfg.Lease > 0 {
		labels[labelExpires] = now.Add(p.cfg.Lease).UTC().Format(time.RFC3339)
	}
	return labels
}

func state(c api.InspectResponse) api.ContainerState {
	if c.State == nil {
		return ""
	}
	return c.State.Status
}

// ended is nil for a container that can be worked in, or will be. One that ended
// for its memory did because its init was killed; one that could not begin never
// will.
func ended(op string, c api.InspectResponse) error {
	s := state(c)
	kind, why := faults.SandboxNotFound, ""
	switch s {
	case api.StateRunning, api.StatePaused, api.StateRestarting:
		return nil
	case api.StateExited, api.StateDead, api.StateRemoving:
		switch {
		case c.State.OOMKilled:
			kind = faults.SandboxOOM
		case c.State.ExitCode == notExecutable, c.State.ExitCode == notThere:
			kind, why = faults.SandboxInvalid, ": its image has no shell that can be run"
		case c.State.ExitCode == bootFailed:
			kind, why = faults.SandboxInvalid, ": it could not make its directories, or give them to the user of commands"
		}
		return faults.New(kind, op, fmt.Errorf("the container is %s, with status %d%s", s, c.State.ExitCode, why))
	}
	return faults.New(kind, op, fmt.Errorf("the container is %q", s))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
