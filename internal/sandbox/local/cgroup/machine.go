package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Machine says where each controller is.
type Machine map[string]Mount

// Mount is a mounted hierarchy.
type Mount struct {
	Path string
	V2   bool
}

// ThisMachine reads what is mounted where this process can see it.
func ThisMachine() (Machine, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parse(string(mounts), func(mount string) []string {
		content, _ := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		return strings.Fields(string(content))
	}), nil
}

// parse reads proc_pid_mountinfo(5): the fifth field is the mount point; after
// a dash come type, source and options, among which version 1 has the
// controllers. A controller is in one hierarchy only.
func parse(mountinfo string, unified func(mount string) []string) Machine {
	machine := Machine{}
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(super) < 3 {
			continue
		}
		mount := Mount{Path: unescape.Replace(fields[4]), V2: super[0] == "cgroup2"}
		var controllers []string
		switch super[0] {
		case "cgroup":
			controllers = strings.Split(super[2], ",")
		case "cgroup2":
			controllers = unified(mount.Path)
		}
		for _, controller := range controllers {
			if _, ok := machine[controller]; !ok && slices.Contains([]string{memory, cpu, pids}, controller) {
				machine[controller] = mount
			}
		}
	}
	return machine
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
