package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatProcessesSurvive(t *testing.T) {
	for name, c := range map[string]struct {
		s    supervisor
		says string // empty: they survive
	}{
		"by hand":           {supervisor{pidNamespace: initialPIDNamespace}, ""},
		"nothing is known":  {supervisor{}, ""},
		"our unit":          {supervisor{initialPIDNamespace, "executor.service", "process"}, ""},
		"systemd's default": {supervisor{initialPIDNamespace, "executor.service", "control-group"}, "KillMode=process"},
		"mixed":             {supervisor{initialPIDNamespace, "executor.service", "mixed"}, "KillMode=process"},
		"a container":       {supervisor{pidNamespace: "pid:[4026532201]"}, "container"},
	} {
		err := c.s.mortal()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheUnitOfAProcess(t *testing.T) {
	for cgroup, unit := range map[string]string{
		"0::/system.slice/executor.service\n":                                           "executor.service",
		"12:memory:/system.slice/agents.service\n0::/system.slice/agents.service\n":     "agents.service",
		"0::/user.slice/user-1000.slice/session-2.scope\n":                              "",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/executor.service\n": "executor.service",
		"0::/user.slice/user-1000.slice/user@1000.service\n":                            "",
		"0::/\n": "",
		"":       "",
	} {
		if got := unitOf(cgroup); got != unit {
			t.Errorf("%q: got %q, want %q", cgroup, got, unit)
		}
	}
}

// systemd cannot be had in a test: a stand-in answers as systemctl show does.
func TestSystemdIsAsked(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nfor unit; do :; done\ncase $unit in\nloose.service) printf 'KillMode=process\\nLoadState=loaded\\n';;\nstrict.service) printf 'KillMode=control-group\\nLoadState=loaded\\n';;\n*) printf 'KillMode=control-group\\nLoadState=not-found\\n';;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for unit, want := range map[string]string{"loose.service": "process", "strict.service": "control-group", "absent.service": ""} {
		if got := supervisorOf(t.Context(), unit); got.killMode != want {
			t.Errorf("%s: %+v", unit, got)
		}
	}
}

// The unit we ship is one whose processes survive.
func TestTheShippedUnit(t *testing.T) {
	text, err := os.ReadFile("../../deploy/executor.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\nKillMode=process\n", "\nOOMPolicy=continue\n", "\nRestart=always\n", "\nTimeoutStopSec=45\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the unit lacks %q", strings.TrimSpace(line))
		}
	}
}
