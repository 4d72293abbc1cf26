package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"
)

// Whether local processes survive a restart of the executor is decided by
// whoever supervises it: a container ends everything in it, and systemd kills
// the unit's whole control group unless it is told not to.

// initialPIDNamespace is the inode that Linux gives the first PID namespace
// (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

// supervisor is what can be seen of who supervises the executor.
type supervisor struct {
	pidNamespace string // of this process; empty: not known
	unit         string // systemd's; empty: there is none
	killMode     string // of the unit
}

// mortal says why local processes would end with the executor; nil: they
// would not.
func (s supervisor) mortal() error {
	switch {
	case s.pidNamespace != "" && s.pidNamespace != initialPIDNamespace:
		return errors.New("this is a container: local processes end with it, and their steps start again; use a provider whose hosts live outside")
	case s.unit != "" && s.killMode != "process" && s.killMode != "none":
		return fmt.Errorf("systemd's unit %s has KillMode=%s: a restart kills running processes; set KillMode=process, as deploy/executor.service does", s.unit, s.killMode)
	}
	return nil
}

// supervisorOf looks at this process, or, with a unit, at systemd's unit of
// that name where systemd knows it.
func supervisorOf(ctx context.Context, unit string) supervisor {
	var s supervisor
	s.pidNamespace, _ = os.Readlink("/proc/self/ns/pid") // without it, nothing is said
	if unit == "" {
		cgroup, _ := os.ReadFile("/proc/self/cgroup")
		unit = unitOf(string(cgroup))
	}
	if unit == "" {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	shown, err := exec.CommandContext(ctx, "systemctl", "show", "--property=LoadState,KillMode", unit).Output()
	if err != nil {
		return s // no systemd
	}
	properties := map[string]string{}
	for line := range strings.Lines(string(shown)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			properties[name] = value
		}
	}
	if properties["LoadState"] == "loaded" {
		s.unit, s.killMode = unit, properties["KillMode"]
	}
	return s
}

// unitOf is the service in a text like /proc/self/cgroup; empty: none.
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		name := path.Base(strings.TrimSpace(line))
		if strings.HasSuffix(name, ".service") && !strings.HasPrefix(name, "user@") {
			return name
		}
	}
	return ""
}
