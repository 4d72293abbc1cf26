package docker

import (
	"strconv"
	"time"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"executor/internal/sandbox"
)

const (
	baseDir = "/executor"
	homeDir = "/executor/home"
	workDir = "/work"
	tmpDir  = "/tmp"
)

// Statuses of a container that could not begin: the shell cannot be run, is not
// there, or could not make the directories.
const (
	notExecutable = 126
	notThere      = 127
	bootFailed    = 64
)

// boot is what a container runs: it makes the directories, run last and by
// rename since that says that they are there, and sleeps, for ever or for the
// seconds of the lease. wait is what lets a shell reap what it did not start,
// where it is PID 1.
const boot = `
user=$1 lease=$2
umask 022
mkdir -p /work /tmp /executor/home /executor/exec /executor/.run || exit 64
chmod 1777 /tmp
chmod 0700 /executor/home /executor/exec /executor/.run
[ -z "$user" ] || chown "$user" /work /executor/home /executor/exec /executor/.run || exit 64
mv /executor/.run /executor/run
trap 'exit 0' TERM INT
while :; do
	sleep "${lease:-86400}" &
	wait $!
	[ -z "$lease" ] || exit 0
done
`

// options is the container of a host.
func (p *Provider) options(spec sandbox.HostSpec) client.ContainerCreateOptions {
	cfg := p.cfg
	lease := ""
	if cfg.Lease > 0 {
		lease = strconv.FormatInt(int64(cfg.Lease/time.Second), 10)
	}
	host := &api.HostConfig{
		Init:           new(!cfg.NoInit),
		AutoRemove:     cfg.Lease > 0,
		NetworkMode:    NetworkNone,
		ReadonlyRootfs: cfg.ReadOnlyRoot,
		CapDrop:        []string{"ALL"},
		CapAdd:         append(capabilities[:len(capabilities):len(capabilities)], cfg.Capabilities...),
		SecurityOpt:    []string{"no-new-privileges"},
		LogConfig:      api.LogConfig{Type: "none"}, // output goes to files in the container
		Runtime:        cfg.Runtime,
		Resources: api.Resources{
			Memory: cfg.Memory, MemorySwap: cfg.Memory,
			NanoCPUs: int64(cfg.CPUs * 1e9),
		},
	}
	if spec.Network {
		host.NetworkMode = api.NetworkMode(cfg.Network)
	}
	if cfg.PIDs > 0 {
		host.PidsLimit = &cfg.PIDs
	}
	if cfg.Disk > 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(cfg.Disk, 10)}
	}
	if cfg.ReadOnlyRoot {
		for _, dir := range []string{workDir, baseDir, tmpDir} {
			host.Mounts = append(host.Mounts, mount.Mount{
				Type: mount.TypeVolume, Target: dir,
				VolumeOptions: &mount.VolumeOptions{Labels: p.labels(spec, time.Now())},
			})
		}
	}
	return client.ContainerCreateOptions{
		Name: p.containerName(spec.Key),
		Config: &api.Config{
			Image:       cfg.Image,
			Entrypoint:  []string{cfg.Shell, "-c", boot, "sh", cfg.User, lease},
			Cmd:         []string{},
			User:        "0:0",
			WorkingDir:  "/",
			Labels:      p.labels(spec, time.Now()),
			Healthcheck: &api.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: host,
	}
}
