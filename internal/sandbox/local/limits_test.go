package local_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
	"executor/internal/sandbox/local/cgroup"
	"executor/internal/sandbox/sandboxtest"
)

var limits = local.Limits{MemoryBytes: 64 << 20, CPUs: 0.25, PIDs: 40}

// limited runs a test in each mode with the limits, which must leave no group.
// Where a machine has no cgroups for us, it is skipped and says so.
func limited(t *testing.T, limits local.Limits, test func(t *testing.T, p *local.Provider, root, parent string)) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		p, parent := openLimited(t, root, mode, limits)
		test(t, p, root, parent)
	})
}

func openLimited(t *testing.T, root string, mode local.Mode, limits local.Limits) (p *local.Provider, parent string) {
	t.Helper()
	cfg := config(root, mode)
	cfg.Limits, cfg.CgroupParent = limits, "executor-test-"+strconv.Itoa(os.Getpid())+"-"+strings.NewReplacer("/", "-").Replace(t.Name())
	// Registered first, so that it runs when the hosts are gone.
	t.Cleanup(func() {
		for _, dir := range groupDirs(t, cfg.CgroupParent) {
			if err := os.Remove(dir); err != nil { // has no groups, so that only it goes
				t.Error("a group is left:", err)
			}
		}
	})
	p, err := local.New(t.Context(), cfg)
	if code(err) == "sandbox_unsupported" && os.Getuid() != 0 {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, cfg.CgroupParent
}

// groupDirs are the directories of a group, once each.
func groupDirs(t *testing.T, path string) []string {
	t.Helper()
	machine, err := cgroup.ThisMachine()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, mount := range machine {
		if dir := filepath.Join(mount.Path, path); !slices.Contains(dirs, dir) {
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// K2-01: what the kernel killed for memory, what somebody else killed, and what
// only says so, are different things.
func TestOutOfMemory(t *testing.T) {
	limited(t, local.Limits{MemoryBytes: 64 << 20}, func(t *testing.T, p *local.Provider, _, _ string) {
		conn := dial(t, p)
		for i, test := range []struct {
			script, code string
			exit         sandbox.Exit
		}{
			{"echo x; exec tail /dev/zero", "sandbox_oom", sandbox.Exit{}},
			{"echo x; tail /dev/zero; exit $?", "sandbox_oom", sandbox.Exit{}},
			{`echo x; s=0123456789abcdef; while :; do s=$s$s; done`, "sandbox_oom", sandbox.Exit{}},
			{"echo x; kill -KILL $$", "", sandbox.Exit{Code: 137, Signal: "SIGKILL"}},
			{"echo x; exit 137", "", sandbox.Exit{Code: 137}},
			{"echo x; tail /dev/zero; true", "", sandbox.Exit{}},                  // K2-02
			{"echo x; tail /dev/zero || exit 3", "", sandbox.Exit{Code: 3}},       // its own account of it
			{"echo x; head -c 200M /dev/zero >file; rm file", "", sandbox.Exit{}}, // a cache is no use of memory
		} {
			n := i + 1
			start(t, conn, n, shell(test.script))
			for range 2 { // by a later executor as well
				out, exit, err := follow(t, conn, n)
				if out != "x\n" || exit != test.exit || code(err) != test.code {
					t.Errorf("%s: %q, %+v, %v", test.script, out, exit, err)
				}
				if err != nil && faults.Of(err).Outcome != faults.Done {
					t.Errorf("%s: outcome %q", test.script, faults.Of(err).Outcome)
				}
			}
		}
		if _, err := conn.Exec(t.Context(), shell("exec tail /dev/zero"), sandbox.Stdio{}); code(err) != "sandbox_oom" {
			t.Errorf("exec: %v", err)
		}
		if exit, err := conn.Exec(t.Context(), shell("kill -KILL $$"), sandbox.Stdio{}); err != nil || exit.Signal != "SIGKILL" {
			t.Errorf("exec, killed: %+v, %v", exit, err)
		}
	})
}

// A process that is killed while another one of its host is out of memory.
func TestOutOfMemoryIsOfOneLaunch(t *testing.T) {
	limited(t, local.Limits{MemoryBytes: 64 << 20}, func(t *testing.T, p *local.Provider, _, _ string) {
		conn := dial(t, p)
		start(t, conn, 1, shell("echo ready; sleep 300"))
		printed(t, conn, 1)
		start(t, conn, 2, shell("exec tail /dev/zero"))
		if _, _, err := follow(t, conn, 2); code(err) != "sandbox_oom" {
			t.Errorf("got %v", err)
		}
		if err := conn.Stop(t.Context(), launch(1), 0); err != nil {
			t.Error(err)
		}
		if _, exit, err := follow(t, conn, 1); err != nil || exit.Signal != "SIGKILL" {
			t.Errorf("the stopped one: %+v, %v", exit, err)
		}
	})
}

// A fork bomb stays within its limit, does not keep its end from being
// recorded, and can be stopped.
func TestForkBomb(t *testing.T) {
	limited(t, local.Limits{PIDs: 40}, func(t *testing.T, p *local.Provider, root, parent string) {
		conn, _ := dialHost(t, p, spec)
		const bomb = `bomb() { echo x; bomb & bomb & }; bomb 2>/dev/null; `
		start(t, conn, 1, shell(bomb+"exit 7"))
		if _, exit, err := follow(t, conn, 1); err != nil || exit.Code != 7 && exit.Code != 2 { // 2: the shell's own fork failed
			t.Errorf("%+v, %v", exit, err)
		}
		// On a host of its own: until init has reaped them, the dead count.
		conn, host := dialHost(t, p, sandbox.HostSpec{Key: "another", RunID: "run"})
		start(t, conn, 2, shell("trap '' TERM; echo ready; i=0; while [ $i -lt 100 ]; do setsid -f env -i sleep 300 2>/dev/null || break; i=$((i+1)); done; exec sleep 300"))
		printed(t, conn, 2)
		for end := time.Now().Add(time.Minute); refused(t, parent, host.ID) == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no fork was refused")
			}
		}
		if n := current(t, parent, host.ID); n > 40 { // bubblewrap takes all along when the shell gives up
			t.Errorf("it has %d processes", n)
		}
		if err := conn.Stop(t.Context(), launch(2), 10*time.Millisecond); err != nil {
			t.Fatal("stop:", err)
		}
		if n := current(t, parent, host.ID); n != 0 {
			t.Errorf("%d processes are left", n)
		}
		if _, exit, err := follow(t, conn, 2); err != nil || exit.Success() {
			t.Errorf("%+v, %v", exit, err)
		}
		// And the host is of use, once init has reaped the dead.
		var err error
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err = conn.Exec(t.Context(), shell("true"), sandbox.Stdio{}); err == nil {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// current counts the live processes of a host's group.
func current(t *testing.T, parent, id string) int {
	t.Helper()
	dirs := groupDirs(t, parent)
	if len(dirs) == 0 {
		return 0
	}
	group := cgroup.Group{Path: id}
	for _, dir := range dirs {
		group.Trees = append(group.Trees, cgroup.Tree{Mount: dir})
	}
	pids, err := group.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	return len(pids)
}

// refused counts the forks that a limit has refused. Kernels count them in the
// group that has the limit or in that of the process.
func refused(t *testing.T, parent, id string) (sum int) {
	t.Helper()
	for _, host := range groupDirs(t, filepath.Join(parent, id)) {
		launches, _ := filepath.Glob(filepath.Join(host, "*", "pids.events"))
		for _, file := range append(launches, filepath.Join(host, "pids.events")) {
			var n int
			content, _ := os.ReadFile(file)
			_, _ = fmt.Sscanf(string(content), "max %d", &n)
			sum += n
		}
	}
	return sum
}

func TestCPULimit(t *testing.T) {
	limited(t, limits, func(t *testing.T, p *local.Provider, _, parent string) {
		conn, host := dialHost(t, p, spec)
		start(t, conn, 1, shell("echo ready; while :; do :; done"))
		printed(t, conn, 1)
		throttled := func() (n int) {
			for _, dir := range groupDirs(t, filepath.Join(parent, host.ID)) {
				content, _ := os.ReadFile(filepath.Join(dir, "cpu.stat"))
				for line := range strings.Lines(string(content)) {
					_, _ = fmt.Sscanf(line, "nr_throttled %d", &n)
				}
			}
			return n
		}
		for end := time.Now().Add(60 * time.Second); throttled() == 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it was never held back")
			}
		}
		if err := conn.Stop(t.Context(), launch(1), 0); err != nil {
			t.Error(err)
		}
	})
}

// What clears its environment and leaves its session and its parent is in the
// group all the same: at the end of its step, at Stop and at Delete.
func TestNothingEscapesAGroup(t *testing.T) {
	limited(t, local.Limits{PIDs: 40}, func(t *testing.T, p *local.Provider, root, parent string) {
		conn, host := dialHost(t, p, spec)
		const away = "env -i setsid -f sh -c 'sleep 300; exit' >/dev/null 2>&1; "
		start(t, conn, 1, shell(away+"exit 4"))
		if _, exit, err := follow(t, conn, 1); err != nil || exit.Code != 4 {
			t.Errorf("%+v, %v", exit, err)
		}
		if n := current(t, parent, host.ID); n != 0 {
			t.Errorf("after the end %d are left", n)
		}
		sh(t, conn, away)
		if n := current(t, parent, host.ID); n != 0 {
			t.Errorf("after exec %d are left", n)
		}
		start(t, conn, 2, shell(away+"echo ready; sleep 300"))
		printed(t, conn, 2)
		if err := conn.Stop(t.Context(), launch(2), time.Minute); err != nil {
			t.Error(err)
		}
		if n := current(t, parent, host.ID); n != 0 {
			t.Errorf("after stop %d are left", n)
		}
		start(t, conn, 3, shell(away+"echo ready; sleep 300"))
		printed(t, conn, 3)
		if err := p.Delete(t.Context(), host.ID); err != nil {
			t.Error(err)
		}
		if dirs := groupDirs(t, filepath.Join(parent, host.ID)); len(dirs) > 0 {
			t.Errorf("left: %v", dirs)
		}
	})
}

// An executor that was configured otherwise ends and removes what is there, and
// after a reboot, which takes the groups, a host has its limits again.
func TestLimitsBelongToTheHost(t *testing.T) {
	limited(t, limits, func(t *testing.T, p *local.Provider, root, parent string) {
		_, host := dialHost(t, p, spec)
		conn := dial(t, open(t, root, local.Plain))
		if got := sh(t, conn, "grep pids /proc/self/cgroup || cat /proc/self/cgroup"); !strings.Contains(got, parent+"/"+host.ID) {
			t.Errorf("it is in %q", got)
		}
		for _, dir := range groupDirs(t, filepath.Join(parent, host.ID)) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
		}
		start(t, conn, 1, shell("exec tail /dev/zero"))
		if _, _, err := follow(t, conn, 1); code(err) != "sandbox_oom" {
			t.Errorf("got %v", err)
		}
		if err := open(t, root, local.Plain).Delete(t.Context(), host.ID); err != nil {
			t.Error(err)
		}
		if dirs := groupDirs(t, filepath.Join(parent, host.ID)); len(dirs) > 0 {
			t.Errorf("left: %v", dirs)
		}
	})
}

func TestLimitsThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*local.Config){
		"sandbox_unsupported": func(cfg *local.Config) {
			cfg.Limits, cfg.CgroupParent = limits, "cgroup.procs/in-a-file"
		},
		"sandbox_invalid": func(cfg *local.Config) { cfg.Limits.PIDs = -1 },
	} {
		cfg := config(t.TempDir(), local.Plain)
		change(&cfg)
		if _, err := local.New(t.Context(), cfg); code(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// An executor that is nobody may make no cgroups, and needs none without limits.
func TestLimitsWithoutPermission(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	cfg := config(t.TempDir(), local.Plain)
	if err := os.Chown(cfg.Root, nobody, nobody); err != nil {
		t.Skip("only root can become nobody:", err)
	}
	if err := os.Chmod(filepath.Dir(cfg.Root), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := make(chan [2]error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with us
		_ = unix.Setfsuid(nobody)
		_, without := local.New(t.Context(), cfg)
		cfg.Limits, cfg.CgroupParent = limits, "executor-test-nobody"
		_, with := local.New(t.Context(), cfg)
		asked <- [2]error{without, with}
	}()
	got := <-asked
	if got[0] != nil {
		t.Error("without limits:", got[0])
	}
	if code(got[1]) != "sandbox_unsupported" || !errors.Is(got[1], fs.ErrPermission) {
		t.Error("with limits:", got[1])
	}
}

func TestWhatIsNotLimitedIsSaid(t *testing.T) {
	limited(t, local.Limits{MemoryBytes: 64 << 20}, func(t *testing.T, p *local.Provider, root, _ string) {
		const memory, pids = "memory is not limited", "the number of processes is not limited"
		if said := p.Isolation().Open; slices.Contains(said, memory) || !slices.Contains(said, pids) {
			t.Errorf("with a limit of memory: %q", said)
		}
		without := open(t, t.TempDir(), p.Isolation().Mode).Isolation().Open
		for _, want := range []string{memory, pids, "CPU time is not limited", "disk space is not limited"} {
			if !slices.Contains(without, want) {
				t.Errorf("without limits: %q", without)
			}
		}
		const escapes = "a process that clears its environment"
		if bytes.Contains([]byte(strings.Join(p.Isolation().Open, ";")), []byte(escapes)) {
			t.Error("the group finds those")
		}
	})
}

// The whole contract holds within limits.
func TestSuiteWithinLimits(t *testing.T) {
	wide := local.Limits{MemoryBytes: 1 << 30, CPUs: 4, PIDs: 2000}
	limited(t, wide, func(t *testing.T, p *local.Provider, root, parent string) {
		mode := p.Isolation().Mode
		sandboxtest.Suite(t, sandboxtest.Subject{
			Open: func(t *testing.T) sandbox.Provider {
				cfg := config(root, mode)
				cfg.Limits, cfg.CgroupParent = wide, parent
				p, err := local.New(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				return p
			},
			Processes:   inHost,
			Left:        func(t *testing.T) []string { return left(t, root) },
			SharedFiles: mode == local.Plain,
			Light:       true,
		})
	})
}
