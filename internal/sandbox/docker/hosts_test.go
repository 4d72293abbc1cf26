package docker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// leave makes a container as an executor that dies on the way leaves it.
func leave(t *testing.T, p *Provider, change ...func(*client.ContainerCreateOptions)) string {
	t.Helper()
	options := p.options(sandbox.HostSpec{Key: sandbox.Key(t.Name()), RunID: "run"})
	for _, c := range change {
		c(&options)
	}
	made, err := p.client.ContainerCreate(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = p.client.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	})
	return made.ID
}

func TestCreatedAndNeverStarted(t *testing.T) {
	t.Parallel()
	p := open(t)
	id := leave(t, p)
	hosts, err := p.List(t.Context())
	if err != nil || len(hosts) != 1 || hosts[0].ID != id || hosts[0].Key != sandbox.Key(t.Name()) {
		t.Errorf("listed: %+v, %v", hosts, err)
	}
	if _, err := p.Get(t.Context(), id); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("get: %v", err)
	}
	host, conn := create(t, p)
	if exit, _ := sh(t, conn, "true"); host.ID != id || !exit.Success() {
		t.Errorf("not adopted: %+v", host)
	}
}

func TestListedAndRemovedInEveryState(t *testing.T) {
	t.Parallel()
	p := open(t)
	want := map[string]func(id string){
		"created": func(string) {},
		"exited":  func(id string) { p.start(t.Context(), id, false); kill(t, p, id) },
		"paused": func(id string) {
			p.start(t.Context(), id, false)
			if _, err := p.client.ContainerPause(t.Context(), id, client.ContainerPauseOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	}
	var ids []string
	for name, into := range want {
		id := leave(t, p, func(o *client.ContainerCreateOptions) { o.Name += name; o.Config.Labels[labelKey] += name })
		into(id)
		ids = append(ids, id)
	}
	hosts, err := p.List(t.Context())
	if err != nil || len(hosts) != len(ids) {
		t.Fatalf("listed: %+v, %v", hosts, err)
	}
	for _, h := range hosts {
		if !slices.Contains(ids, h.ID) {
			t.Errorf("whose is %+v?", h)
		}
		if err := p.Delete(t.Context(), h.ID); err != nil {
			t.Error(err)
		}
	}
	if hosts, err = p.List(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("left: %+v, %v", hosts, err)
	}
}

func kill(t *testing.T, p *Provider, id string) {
	t.Helper()
	if _, err := p.client.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	wait := p.client.ContainerWait(t.Context(), id, client.ContainerWaitOptions{Condition: api.WaitConditionNotRunning})
	select {
	case <-wait.Result:
	case err := <-wait.Error:
		t.Fatal(err)
	}
}

// A container that ended under a process is gone, and its key starts anew.
func TestStoppedUnderAProcess(t *testing.T) {
	t.Parallel()
	p := open(t)
	host, conn := create(t, p)
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	if _, err := conn.Start(t.Context(), launch, shell("echo ready; sleep 300")); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error {
		go func() {
			_, _ = p.client.ContainerKill(t.Context(), host.ID, client.ContainerKillOptions{Signal: "KILL"})
		}()
		return nil
	})
	if !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("follow: %v", err)
	}
	if _, err := p.Get(t.Context(), host.ID); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := conn.Exec(t.Context(), shell("true"), sandbox.Stdio{}); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("exec: %v", err)
	}
	again, conn := create(t, p)
	if exit, _ := sh(t, conn, "true"); again.ID == host.ID || !exit.Success() {
		t.Errorf("created again: %+v", again)
	}
}

func TestTakenByAnother(t *testing.T) {
	t.Parallel()
	p := open(t)
	leave(t, p, func(o *client.ContainerCreateOptions) { o.Config.Labels = nil })
	_, err := p.Create(t.Context(), sandbox.HostSpec{Key: sandbox.Key(t.Name())})
	if !errors.Is(err, faults.SandboxConflict) {
		t.Errorf("got %v", err)
	}
}

func TestAnotherInstallation(t *testing.T) {
	t.Parallel()
	host, _ := create(t, open(t))
	other := open(t, func(c *Config) { c.Installation = "test-other-installation" })
	if hosts, err := other.List(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("listed: %+v, %v", hosts, err)
	}
	if _, err := other.Get(t.Context(), host.ID); !errors.Is(err, faults.SandboxNotFound) {
		t.Errorf("get: %v", err)
	}
	mine, _ := create(t, other)
	if mine.ID == host.ID {
		t.Error("two installations, one container")
	}
}

func TestDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"no such shell":   func(c *Config) { c.Shell, c.NoInit = "/bin/none", true },
		"no such network": func(c *Config) { c.Network = "executor-test-none" },
	} {
		p := open(t, change)
		_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key", Network: true})
		if f := faults.Of(err); f == nil || f.Kind != faults.SandboxInvalid || f.Outcome != faults.NotStarted {
			t.Errorf("%s: %v", name, err)
		}
		if hosts, err := p.List(t.Context()); err != nil || len(hosts) != 0 {
			t.Errorf("%s: left %+v, %v", name, hosts, err)
		}
	}
	// Under an init it starts, and ends.
	for name, change := range map[string]func(*Config){
		"no such shell": func(c *Config) { c.Shell = "/bin/none" },
		"no such user":  func(c *Config) { c.User = "nobody-knows" },
	} {
		for _, lease := range []time.Duration{0, time.Hour} { // with one, it removes itself
			p := open(t, change, func(c *Config) { c.Installation += name; c.Lease = lease })
			_, conn := create(t, p)
			var err error
			for err == nil || errors.Is(err, faults.SandboxConflict) || errors.Is(err, faults.SandboxUnavailable) {
				_, err = conn.Exec(t.Context(), shell("true"), sandbox.Stdio{})
			}
			if !errors.Is(err, faults.SandboxInvalid) {
				t.Errorf("%s, lease %s: %v", name, lease, err)
			}
			for began := time.Now(); lease > 0; time.Sleep(50 * time.Millisecond) {
				hosts, err := p.List(t.Context())
				if err == nil && len(hosts) == 0 {
					break
				}
				if err != nil || time.Since(began) > 20*time.Second {
					t.Fatalf("%s: left %+v, %v", name, hosts, err)
				}
			}
		}
	}
	p := open(t, func(c *Config) { c.Image = "executor-test-none:latest" })
	_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxImage || !f.Permanent {
		t.Errorf("no image: %v", err)
	}
	p = open(t, func(c *Config) { c.Network = NetworkNone })
	if _, err = p.Create(t.Context(), sandbox.HostSpec{Key: "key", Network: true}); !errors.Is(err, faults.SandboxUnsupported) {
		t.Errorf("no network: %v", err)
	}
}

// Only a run that asks for a network has one.
func TestNetwork(t *testing.T) {
	t.Parallel()
	const name = "executor-test-network"
	p := open(t, func(c *Config) { c.Network = name })
	if _, err := p.client.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.client.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{}) })
	host, conn := create(t, p, true)
	if _, out := sh(t, conn, "ls /sys/class/net"); !strings.Contains(out, "eth0") {
		t.Errorf("has %s", out)
	}
	if _, err := p.Create(t.Context(), sandbox.HostSpec{Key: host.Key}); !errors.Is(err, faults.SandboxConflict) {
		t.Errorf("the same without a network: %v", err)
	}
	if err := p.Delete(t.Context(), host.ID); err != nil {
		t.Error(err)
	}
}

// A container with a lease goes without anybody.
func TestLease(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.Lease = 2 * time.Second })
	host, _ := create(t, p)
	if left := time.Until(host.ExpiresAt); left > 2*time.Second || left < -2*time.Second {
		t.Errorf("expires in %s", left)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		hosts, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(hosts) == 0 {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%+v is there still", hosts)
		}
	}
}

// The volumes of a container go with it.
func TestVolumes(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.ReadOnlyRoot = true })
	host, _ := create(t, p)
	count := func() int {
		found, err := p.client.VolumeList(t.Context(), client.VolumeListOptions{
			Filters: make(client.Filters).Add("label", labelInstallation+"="+p.cfg.Installation)})
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Items)
	}
	if n := count(); n != 3 {
		t.Errorf("%d volumes", n)
	}
	if err := p.Delete(t.Context(), host.ID); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d volumes are left", n)
	}
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"installation": {Image: "image"},
		"image":        {Installation: "i"},
		"scheme":       {Installation: "i", Image: "image", Host: "nonsense"},
		"no host":      {Installation: "i", Image: "image", Host: "ssh://"},
		"an option":    {Installation: "i", Image: "image", Host: "ssh://-oProxyCommand=x"},
		"a key alone":  {Installation: "i", Image: "image", Host: "tcp://host:1", KeyFile: "/none"},
		"volumes":      {Installation: "i", Image: "image", Disk: 1 << 30, ReadOnlyRoot: true},
		"a path":       {Installation: "i", Image: "image", Host: "ssh://host/path"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
