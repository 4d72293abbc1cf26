package cgroup

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Four layouts that machines have, as their kernels print them.
func TestWhereControllersAre(t *testing.T) {
	t.Parallel()
	const (
		split = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
		systemd1 = `30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:10 master:3 - cgroup cgroup rw,memory
`
		unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		spaces  = "30 23 0:26 / /mnt/c\\040g rw - cgroup2 none rw\n"
	)
	v1, v2 := func(path string) Mount { return Mount{path, false} }, func(path string) Mount { return Mount{path, true} }
	for _, test := range []struct {
		mounts, unified string
		want            Machine
	}{
		{split, "hugetlb", Machine{memory: v1("/sys/fs/cgroup/memory"), cpu: v1("/sys/fs/cgroup/cpu"), pids: v1("/sys/fs/cgroup/pids")}},
		{split[:strings.Index(split, "35 31")] + split[strings.Index(split, "41 31"):], "memory pids",
			Machine{memory: v2("/sys/fs/cgroup/unified"), cpu: v1("/sys/fs/cgroup/cpu"), pids: v2("/sys/fs/cgroup/unified")}},
		{systemd1, "", Machine{memory: v1("/sys/fs/cgroup/memory"), cpu: v1("/sys/fs/cgroup/cpu,cpuacct")}},
		{unified, "cpuset cpu io memory hugetlb pids", Machine{memory: v2("/sys/fs/cgroup"), cpu: v2("/sys/fs/cgroup"), pids: v2("/sys/fs/cgroup")}},
		{spaces, "pids", Machine{pids: v2("/mnt/c g")}},
		{"", "", Machine{}},
		{"garbage\n - cgroup\n1 2 3 4 5 - cgroup x\n", "", Machine{}},
	} {
		got := parse(test.mounts, func(string) []string { return strings.Fields(test.unified) })
		if len(got) != len(test.want) {
			t.Errorf("%s: %v", test.mounts, got)
		}
		for controller, mount := range test.want {
			if got[controller] != mount {
				t.Errorf("%s: %s is at %v, want %v", test.mounts, controller, got[controller], mount)
			}
		}
	}
}

// fake is a tree of files where a kernel would have its own. A kernel makes the
// files with the directory, so that those of dirs are there before.
func fake(t *testing.T, v2 bool, dirs ...string) (mount string) {
	t.Helper()
	mount = t.TempDir()
	files := map[string]string{"cgroup.procs": ""}
	if v2 {
		files["cgroup.subtree_control"], files["memory.swap.max"], files["cgroup.kill"] = "cpu\n", "max\n", ""
		files["memory.events"] = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n"
	} else {
		files["memory.memsw.limit_in_bytes"], files["pids.max"] = "", "max\n"
		files["memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
	}
	for _, dir := range append(dirs, "") {
		if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			put(t, filepath.Join(mount, dir, name), content)
		}
	}
	return mount
}

func put(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, mount string, want map[string]string) {
	t.Helper()
	for file, want := range want {
		if got, err := os.ReadFile(filepath.Join(mount, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
}

var all = Limits{MemoryBytes: 64 << 20, CPUs: 1.5, PIDs: 100}

func TestVersion2(t *testing.T) {
	t.Parallel()
	mount := fake(t, true, "up", "up/host", "up/host/launch+1")
	machine := Machine{memory: {mount, true}, cpu: {mount, true}, pids: {mount, true}}
	host, err := New(machine, "up/host", all)
	if err != nil {
		t.Fatal(err)
	}
	launch := host.Sub("launch+1")
	for range 2 {
		if err := errors.Join(host.Make(), launch.Make()); err != nil {
			t.Fatal(err)
		}
	}
	check(t, mount, map[string]string{
		"cgroup.subtree_control":                  "+pids", // the last of what is written: the fake keeps no more
		"up/cgroup.subtree_control":               "+pids",
		"up/host/cgroup.subtree_control":          "+pids",
		"up/host/launch+1/cgroup.subtree_control": "cpu\n", // has processes, and so no groups
		"up/host/memory.max":                      "67108864",
		"up/host/memory.swap.max":                 "0",
		"up/host/cpu.max":                         "150000 100000",
		"up/host/pids.max":                        "100",
	})
	if _, err := os.Stat(filepath.Join(mount, "up/host/launch+1/memory.max")); err == nil {
		t.Error("the launch has a limit of its own")
	}
	if n, err := launch.OOMKills(); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	put(t, filepath.Join(mount, "up/host/launch+1/cgroup.procs"), "17\n4711\n0\n")
	put(t, filepath.Join(mount, "up/host/cgroup.procs"), "3\n")
	if got, err := host.PIDs(); err != nil || len(got) != 3 || !got[17] || !got[4711] || !got[3] {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := launch.PIDs(); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if err := launch.Seal(); err != nil {
		t.Error(err)
	}
	check(t, mount, map[string]string{"up/host/launch+1/cgroup.kill": "1", "up/host/cgroup.kill": ""})
	wrapper := launch.Wrapper([]string{"/bin/sh"})
	if got := slices.DeleteFunc(wrapper, func(s string) bool { return !strings.HasPrefix(s, mount) }); len(got) != 1 {
		t.Errorf("it enters %v", got)
	}
}

func TestVersion1(t *testing.T) {
	t.Parallel()
	m, c, p := fake(t, false, "up/host/launch"), fake(t, false, "up/host/launch"), fake(t, false, "up/host/launch")
	for _, mount := range []string{m, c, p} {
		if err := os.MkdirAll(filepath.Join(mount, "up/host"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(m, "up/host/memory.memsw.limit_in_bytes"), "")
	put(t, filepath.Join(p, "up/host/pids.max"), "")
	host, err := New(Machine{memory: {m, false}, cpu: {c, false}, pids: {p, false}}, "up/host", all)
	if err != nil {
		t.Fatal(err)
	}
	launch := host.Sub("launch")
	if err := errors.Join(host.Make(), launch.Make()); err != nil {
		t.Fatal(err)
	}
	check(t, m, map[string]string{"up/host/memory.limit_in_bytes": "67108864", "up/host/memory.memsw.limit_in_bytes": "67108864"})
	check(t, c, map[string]string{"up/host/cpu.cfs_period_us": "100000", "up/host/cpu.cfs_quota_us": "150000"})
	check(t, p, map[string]string{"up/host/pids.max": "100", "up/host/launch/pids.max": "max"})
	if n, err := launch.OOMKills(); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := launch.Seal(); err != nil {
		t.Error(err)
	}
	check(t, p, map[string]string{"up/host/launch/pids.max": "0"})
}

func TestWhatCannotBe(t *testing.T) {
	t.Parallel()
	machine := Machine{pids: {t.TempDir(), true}}
	for _, limits := range []Limits{
		{}, {MemoryBytes: 1}, {PIDs: -1}, {MemoryBytes: -1}, {CPUs: -1}, {CPUs: 0.001}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)},
	} {
		if _, err := New(machine, "a/b", limits); err == nil {
			t.Errorf("%+v is taken", limits)
		}
	}
	for _, path := range []string{"", ".", "/a", "../a", "a/../../b"} {
		if _, err := New(machine, path, Limits{PIDs: 1}); err == nil {
			t.Errorf("%q is taken", path)
		}
	}
	g, err := New(machine, "a/b", Limits{PIDs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Make(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("controllers cannot be handed down: %v", err)
	}
	if got, err := g.PIDs(); len(got) > 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if err := errors.Join(g.Seal(), g.Remove()); err != nil {
		t.Error("what is not there:", err)
	}
	if n, err := g.OOMKills(); n != 0 || err != nil {
		t.Errorf("without the memory controller: %d, %v", n, err)
	}
}

// The kernel's own version 2, as far as it goes where it has no controller:
// entering, finding and ending a tree, and removing its group.
func TestVersion2OfThisMachine(t *testing.T) {
	t.Parallel()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	mount := ""
	parse(string(mounts), func(at string) []string { mount = at; return nil })
	if mount == "" {
		t.Skip("cgroup2 is not mounted here")
	}
	host := Group{Path: "executor-test-" + filepath.Base(t.TempDir()) + "-" + strings.ToLower(t.Name()), Trees: []Tree{{Mount: mount, V2: true}}}
	launch := host.Sub("launch+1")
	if err := launch.Make(); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Skip("cgroups need root here:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	argv := append(launch.Wrapper([]string{"/bin/sh"}), "/bin/sh", "-c", "setsid sleep 300 & echo ready; exec sleep 300")
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	for _, g := range []Group{host, launch} {
		if got, err := g.PIDs(); err != nil || len(got) != 2 || !got[cmd.Process.Pid] {
			t.Errorf("%s: %v, %v", g.Path, got, err)
		}
	}
	if err := host.Seal(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if err := host.Remove(); err != nil {
		t.Error(err)
	}
	if got, err := host.PIDs(); err != nil || len(got) > 0 {
		t.Errorf("left: %v, %v", got, err)
	}
}
