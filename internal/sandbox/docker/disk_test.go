package docker

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// startLimiting starts a daemon that can limit a container's disk. It keeps what
// it has on a btrfs in a file, mounted where only the daemon sees it: it goes
// with the daemon.
func startLimiting(t *testing.T) *ownDaemon {
	t.Helper()
	d := newDaemon(t)
	disk := d.dir + "/disk"
	write(t, disk, "")
	if err := os.Truncate(disk, 400<<20); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.btrfs", "--quiet", disk)
	if err := os.Mkdir(d.dir+"/data", 0o700); err != nil {
		t.Fatal(err)
	}
	d.before = []string{"unshare", "--mount", "sh", "-c", `mount -o loop "$1" "$2" && shift 2 && exec "$@"`, "sh", disk, d.dir + "/data"}
	d.start("--storage-driver", "btrfs")
	d.image()
	return d
}

func TestDiskLimit(t *testing.T) {
	t.Parallel()
	d := startLimiting(t)
	_, conn := create(t, open(t, d.at, func(c *Config) { c.Disk = 60 << 20 }))
	_, other := create(t, open(t, d.at, func(c *Config) { c.Installation += "other" }))
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	if _, err := conn.Start(t.Context(), launch, shell("dd if=/dev/zero of=big bs=1M || exit 9")); err != nil {
		t.Fatal(err)
	}
	// A full btrfs takes nothing at all, so that nobody may know how it ended.
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, discard)
	if (err != nil || exit.Code != 9) && !errors.Is(err, faults.SandboxLost) {
		t.Errorf("the step: %+v, %v", exit, err)
	}
	if _, out := sh(t, conn, "[ $(stat -c %s big) -le 62914560 ] && echo limited; echo more >file"); !strings.HasPrefix(out, "limited\n") || !strings.Contains(out, "quota") {
		t.Errorf("wrote %q", out)
	}
	if err := conn.Upload(t.Context(), "file", 0o600, bytes.NewReader(make([]byte, 1<<20))); !errors.Is(err, faults.SandboxDiskFull) {
		t.Errorf("upload: %v", err)
	}
	_, err = conn.Start(t.Context(), sandbox.Launch{RunID: "run", Step: "step", N: 2}, sandbox.Command{Argv: []string{"cat"}, Stdin: make([]byte, 1<<20)})
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxDiskFull || f.Outcome != faults.NotStarted {
		t.Errorf("start: %v", err)
	}
	if exit, out := sh(t, other, "dd if=/dev/zero of=big bs=1M count=100 2>/dev/null; ls -s big"); !exit.Success() || !strings.HasPrefix(strings.TrimSpace(out), "102400 ") {
		t.Errorf("the other one: %+v, %q", exit, out)
	}
	if exit, out := sh(t, conn, "rm big && echo again >file && cat file"); !exit.Success() || out != "again\n" {
		t.Errorf("afterwards: %+v, %q", exit, out)
	}
}

// Without a storage driver that can, nobody thinks that there is a limit.
func TestNoDiskLimit(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *Config) { c.Disk = 60 << 20 })
	_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
	f := faults.Of(err)
	if f == nil || f.Kind != faults.SandboxUnsupported || f.Outcome != faults.NotStarted || !strings.Contains(err.Error(), "disk limit of 62914560 bytes") {
		t.Errorf("%v", err)
	}
	if hosts, err := p.List(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("left: %+v, %v", hosts, err)
	}
}
