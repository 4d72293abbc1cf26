package docker

import (
	"context"
	"fmt"
	"testing"

	"github.com/moby/moby/client"

	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
	"executor/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	const installation = "test-conformance"
	inInstallation := func(name string) func(*Config) {
		return func(cfg *Config) { cfg.Installation = name }
	}
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open:  func(t *testing.T) sandbox.Provider { return open(t, inInstallation(installation)) },
		World: installation,
		Lined: func(t *testing.T) (sandbox.Provider, sandboxtest.Line) {
			line := newProxy(t)
			return open(t, func(cfg *Config) { cfg.Host = "tcp://" + line.Address }), line
		},
		SmallDisk: func(t *testing.T) sandbox.Provider { return inMemory{open(t, inInstallation(installation))} },
		SmallMemory: func(t *testing.T) sandbox.Provider {
			return open(t, inInstallation(installation), func(cfg *Config) { cfg.Memory = 64 << 20 })
		},
		Processes: inContainer,
		Left:      func(t *testing.T) []string { return labelled(t, installation) },
		Ceiling: func(t *testing.T, bytes int64) sandbox.Provider {
			return open(t, inInstallation(installation), func(cfg *Config) { cfg.OutputCeiling = bytes })
		}, // nothing is given back: busybox cannot
	})
}

// other is the provider of another process that the suite has started.
func other(installation string) (sandbox.Provider, error) {
	return New(Config{Host: daemonHost(), Installation: installation, Image: testImage, Pull: PullNever})
}

// inMemory works in what a container has of a small disk, its shared memory of
// 64 MB.
type inMemory struct{ *Provider }

func (p inMemory) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	if _, err := p.Provider.Dial(ctx, host); err != nil {
		return nil, err
	}
	way := &container{provider: p.Provider, id: host.ID, patience: exitLimit}
	return remote.New(way, remote.Config{Base: "/dev/shm/base"}), nil
}

func inContainer(t *testing.T, p sandbox.Provider, host sandbox.Host) int {
	t.Helper()
	if small, ok := p.(inMemory); ok {
		p = small.Provider
	}
	top, err := p.(*Provider).client.ContainerTop(t.Context(), host.ID, client.ContainerTopOptions{Arguments: []string{"-eo", "pid"}})
	if err != nil {
		t.Error(err)
	}
	return len(top.Processes)
}

// labelled are the containers and volumes of an installation.
func labelled(t *testing.T, installation string) (left []string) {
	t.Helper()
	c, err := client.New(client.WithHost(daemonHost()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	of := make(client.Filters).Add("label", labelInstallation+"="+installation)
	containers, err := c.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: of})
	if err != nil {
		t.Error(err)
	}
	for _, c := range containers.Items {
		left = append(left, fmt.Sprint("container ", c.Names, c.State))
	}
	volumes, err := c.VolumeList(context.Background(), client.VolumeListOptions{Filters: of})
	if err != nil {
		t.Error(err)
	}
	for _, v := range volumes.Items {
		left = append(left, "volume "+v.Name)
	}
	return left
}
