package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// supervise runs a command under the script, in a shell, without a wrapper.
func supervise(t *testing.T, shell []string, argv ...string) (end sandbox.End, err error, stderr string) {
	t.Helper()
	run := t.TempDir()
	for name, content := range map[string][]byte{
		sandbox.RunStdin: nil, sandbox.RunStdout: nil, sandbox.RunStderr: nil,
		sandbox.RunPIDNew: sandbox.Reserve, sandbox.RunStatus: sandbox.Reserve,
	} {
		if err := os.WriteFile(filepath.Join(run, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := sandbox.SuperviseArgv(shell, nil, run, argv)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), sandbox.MarkLaunch+"=x", sandbox.MarkSupervisor+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("the supervisor: %v, %s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(run, sandbox.RunExit))
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(filepath.Join(run, sandbox.RunStderr))
	if err != nil {
		t.Fatal(err)
	}
	end, err = sandbox.ParseEnd(content)
	return end, err, string(said)
}

func TestSupervise(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	for _, test := range []struct {
		argv   []string
		code   int
		signal string
	}{
		{sh("exit 0"), 0, ""},
		{sh("exit 7"), 7, ""},
		{sh("exit 137"), 137, ""},
		{sh("exit 139"), 139, ""},
		{sh("exit 143"), 143, ""},
		{sh("exit 255"), 255, ""},
		{sh("kill -KILL $$"), 137, "SIGKILL"},
		{sh("kill -SEGV $$"), 139, "SIGSEGV"},
		{sh("kill -TERM $$"), 143, "SIGTERM"},
		{sh("kill -HUP $$"), 129, "SIGHUP"},
		{sh("kill -INT $$"), 130, "SIGINT"},
		{sh("kill -PIPE $$"), 141, "SIGPIPE"},
		{sh("kill -TERM 0"), 143, "SIGTERM"},
		{sh("kill -KILL 0"), 137, "SIGKILL"},
		{sh("exec 2>/dev/null; sh -c 'kill -KILL $$'; exit 9"), 9, ""},
		{sh("test -z \"$EXECUTOR_SUPERVISOR\" && test $EXECUTOR_LAUNCH = x"), 0, ""},
		{sh("trap 'exit 5' TERM HUP INT; kill -TERM $$; sleep 0"), 5, ""},
		{[]string{"no-such-program"}, 127, ""},
		{[]string{"exit", "3"}, 127, ""},
		{[]string{"cd"}, 127, ""},
		{[]string{"a=b"}, 127, ""},
		{[]string{"-x"}, 127, ""},
		{[]string{plain}, 126, ""},
	} {
		for _, shell := range [][]string{{"dash"}, {"bash", "--posix"}, {"bash"}, {"busybox", "ash"}} {
			t.Run(strings.Join(shell, " ")+" "+strings.Join(test.argv, " "), func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(shell[0]); err != nil {
					if os.Getenv("CI") != "" {
						t.Fatal(err)
					}
					t.Skip(err)
				}
				end, err, stderr := supervise(t, shell, test.argv...)
				if want := (sandbox.Exit{Code: test.code, Signal: test.signal}); err != nil || end.Exit != want || end.Alone {
					t.Errorf("%+v, %v, want %+v", end, err, want)
				}
				if said := stderr != ""; said != (test.code == 126 || test.code == 127) {
					t.Errorf("stderr: %q", stderr)
				}
			})
		}
	}
}

func TestParseEnd(t *testing.T) {
	t.Parallel()
	reserve := string(sandbox.Reserve)
	for content, want := range map[string]struct {
		end sandbox.End
		err error
	}{
		reserve + "begun\nended: 3 7\nsupervised: 3\n":             {sandbox.End{Exit: sandbox.Exit{Code: 3}}, nil},
		reserve + "begun\nended: 3 1\nsupervised: 3\n":             {sandbox.End{Exit: sandbox.Exit{Code: 3}, Alone: true}, nil},
		"begun\nKilled\nended: 137 7\nsupervised: 0\n":             {sandbox.End{Exit: sandbox.Exit{Code: 137, Signal: "SIGKILL"}}, nil},
		"a warning\nbegun\nended: 137 7\nsupervised: 0\n":          {sandbox.End{Exit: sandbox.Exit{Code: 137}}, nil},
		"failed\nbegun\nReal-time\nended: 162 7\nsupervised: 0\n":  {sandbox.End{Exit: sandbox.Exit{Code: 162, Signal: "SIG34"}}, nil},
		"begun\na notice of something else\nended: 255 7\n":        {sandbox.End{Exit: sandbox.Exit{Code: 255}}, nil},
		"begun\nended: 3 7\nsupervised: 3\nroom: 1000 4096 9 9\n":  {sandbox.End{Exit: sandbox.Exit{Code: 3}}, nil},
		"begun\nended: 3 7\nsupervised: 3\nroom: 10 4096 9 9\n":    {sandbox.End{Exit: sandbox.Exit{Code: 3}, Full: true}, nil},
		"begun\nended: 3 7\nsupervised: 3\nroom: 1000 4096 0 9\n":  {sandbox.End{Exit: sandbox.Exit{Code: 3}, Full: true}, nil},
		"begun\nended: 3 7\nsupervised: 3\nroom: 1000 4096 0 0\n":  {sandbox.End{Exit: sandbox.Exit{Code: 3}}, nil}, // btrfs
		"begun\nended: 3 7\nsupervised: 3\nroom: \nroom: many\n":   {sandbox.End{Exit: sandbox.Exit{Code: 3}}, nil},
		"begun\nsupervised: 137\n":                                 {sandbox.End{Exit: sandbox.Exit{Code: 137, Signal: "SIGKILL"}}, nil},
		"begun\nsupervised: 1\n":                                   {sandbox.End{}, sandbox.ErrNoEnd},
		"cannot mount\nsupervised: 1\n":                            {sandbox.End{}, sandbox.ErrNotBegun},
		"":                                                         {sandbox.End{}, sandbox.ErrNotBegun},
		"\xff\x00\nbegun\nended: x y\nended: \nsupervised: many\n": {sandbox.End{}, sandbox.ErrNoEnd},
	} {
		if end, err := sandbox.ParseEnd([]byte(content)); end != want.end || !errors.Is(err, want.err) {
			t.Errorf("%q: %+v, %v, want %+v", content, end, err, want)
		}
	}
}

// A full disk is why a step fails, if nothing else is known to be.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for end, full := range map[sandbox.End]bool{
		{Exit: sandbox.Exit{Code: 3}, Full: true}:                      true,
		{Exit: sandbox.Exit{Code: 137}, Full: true}:                    true,
		{Exit: sandbox.Exit{Code: 3}}:                                  false,
		{Full: true}:                                                   false,
		{Exit: sandbox.Exit{Code: 137, Signal: "SIGKILL"}, Full: true}: false,
	} {
		err := end.DiskFull()
		if errors.Is(err, faults.SandboxDiskFull) != full || !full && err != nil {
			t.Errorf("%+v: %v", end, err)
		}
		if full && faults.Of(err).Outcome != faults.Done {
			t.Errorf("%+v: outcome %q", end, faults.Of(err).Outcome)
		}
	}
}

// Whatever is in the file, an end without a status is no success.
func FuzzParseEnd(f *testing.F) {
	f.Add([]byte("begun\nended: 0 1\nsupervised: 0\n"))
	f.Add([]byte("begun\nsupervised: 0\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		end, err := sandbox.ParseEnd(content)
		if err == nil && end.Success() && !strings.Contains(string(content), "ended:") {
			t.Errorf("%q is a success", content)
		}
	})
}
