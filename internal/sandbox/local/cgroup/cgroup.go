// Package cgroup limits groups of processes, finds their members and knows
// whether the kernel killed one for its memory.
//
// A machine has each controller in a hierarchy of version 1, each with its own
// tree, or in the one of version 2, or (systemd's hybrid layout) some here and
// some there. A Group is one path in all the trees that its limits need:
//
//	<mount of a controller>/<path of a group>/             the limits
//	<mount of a controller>/<path of a group>/<subgroup>/  the processes
//
// Processes are in subgroups only, as version 2 demands. A subgroup has no
// limits of its own; it tells its processes, and the deaths among them, from
// those of its siblings.
//
// The files are those of cgroups(7), and in the kernel's documentation
// admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/. The package writes them
// itself: github.com/containerd/cgroups takes one version for everything,
// chooses controllers by what is mounted and not by what is asked for, moves
// processes from outside only, and brings eBPF, D-Bus and protobuf along.
//
// It imports the standard library only.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits of all processes of a group together; 0: none.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"` // with swap where the kernel accounts for it, and files in memory
	CPUs        float64 `json:"cpus,omitempty"`         // 1.5: one and a half cores' time
	PIDs        int64   `json:"pids,omitempty"`         // processes and threads
}

// minCPUs is what the kernel takes: a millisecond in each period.
const (
	minCPUs = 0.01
	period  = 100_000 // microseconds
)

// Valid reports what is wrong with the limits.
func (l Limits) Valid() error {
	if l.MemoryBytes < 0 || l.PIDs < 0 || l.CPUs < 0 || l.CPUs > 0 && l.CPUs < minCPUs || l.CPUs > 1<<20 || l.CPUs != l.CPUs {
		return fmt.Errorf("limits %+v: none may be negative, and CPUs not below %v", l, minCPUs)
	}
	return nil
}

func (l Limits) controllers() []string {
	var needed []string
	for name, set := range map[string]bool{memory: l.MemoryBytes > 0, cpu: l.CPUs > 0, pids: l.PIDs > 0} {
		if set {
			needed = append(needed, name)
		}
	}
	slices.Sort(needed)
	return needed
}

// The controllers, as the kernel names them.
const (
	memory = "memory"
	cpu    = "cpu"
	pids   = "pids"
)

// Group is a group of processes. Its fields are exported to be stored: what
// knows them can find the group again.
type Group struct {
	Path   string // below the mounts
	Limits Limits // of a subgroup: none
	Trees  []Tree // that it is in, never none
}

// Tree is one hierarchy that a group is in, with the controllers that are used
// there.
type Tree struct {
	Mount       string
	V2          bool
	Controllers []string
}

// New returns the group at path that limits need. It makes nothing. A
// controller that the machine has not is an error.
func New(machine Machine, path string, limits Limits) (Group, error) {
	if err := limits.Valid(); err != nil {
		return Group{}, err
	}
	g := Group{Path: path, Limits: limits}
	if !filepath.IsLocal(path) || path == "." {
		return Group{}, fmt.Errorf("%q is no path of a group", path)
	}
	for _, controller := range limits.controllers() {
		mount, ok := machine[controller]
		if !ok {
			return Group{}, fmt.Errorf("no mounted cgroup hierarchy has the %s controller", controller)
		}
		i := slices.IndexFunc(g.Trees, func(t Tree) bool { return t.Mount == mount.Path })
		if i < 0 {
			i = len(g.Trees)
			g.Trees = append(g.Trees, Tree{Mount: mount.Path, V2: mount.V2})
		}
		g.Trees[i].Controllers = append(g.Trees[i].Controllers, controller)
	}
	if len(g.Trees) == 0 {
		return Group{}, errors.New("a group without limits")
	}
	return g, nil
}

// Sub is the subgroup of that name.
func (g Group) Sub(name string) Group {
	return Group{Path: filepath.Join(g.Path, name), Trees: g.Trees}
}

func (g Group) dir(t Tree) string { return filepath.Join(t.Mount, g.Path) }

// Make makes the group and those above it, and sets its limits. It may be
// repeated.
func (g Group) Make() error {
	for _, t := range g.Trees {
		dir := t.Mount
		for _, name := range strings.Split(g.Path, string(filepath.Separator)) {
			if t.V2 {
				if err := enable(dir, t.Controllers); err != nil {
					return err
				}
			}
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		for _, setting := range g.Limits.settings(t) {
			if err := setting.write(dir); err != nil {
				return err
			}
		}
		if !t.V2 && g.Limits == (Limits{}) && slices.Contains(t.Controllers, pids) {
			if err := write(dir, "pids.max", "max"); err != nil { // after a Seal
				return err
			}
		}
	}
	return nil
}

// enable hands controllers down to the groups in dir. Writing what is there
// already may fail where reading does not.
func enable(dir string, controllers []string) error {
	const file = "cgroup.subtree_control"
	there, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return err
	}
	for _, controller := range controllers {
		if slices.Contains(strings.Fields(string(there)), controller) {
			continue
		}
		if err := write(dir, file, "+"+controller); err != nil {
			return err
		}
	}
	return nil
}

// setting is one file of a group. An optional one is not on every machine.
type setting struct {
	file, value string
	optional    bool
}

func (s setting) write(dir string) error {
	if s.optional {
		if _, err := os.Stat(filepath.Join(dir, s.file)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return write(dir, s.file, s.value)
}

// settings are in the order in which the kernel takes them.
func (l Limits) settings(t Tree) []setting {
	var all []setting
	for _, controller := range t.Controllers {
		switch bytes, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.FormatFloat(l.CPUs*period, 'f', 0, 64); {
		case controller == memory && l.MemoryBytes > 0 && t.V2:
			all = append(all, setting{"memory.max", bytes, false}, setting{"memory.swap.max", "0", true})
		case controller == memory && l.MemoryBytes > 0:
			all = append(all, setting{"memory.limit_in_bytes", bytes, false}, setting{"memory.memsw.limit_in_bytes", bytes, true})
		case controller == cpu && l.CPUs > 0 && t.V2:
			all = append(all, setting{"cpu.max", quota + " " + strconv.Itoa(period), false})
		case controller == cpu && l.CPUs > 0:
			all = append(all, setting{"cpu.cfs_period_us", strconv.Itoa(period), false}, setting{"cpu.cfs_quota_us", quota, false})
		case controller == pids && l.PIDs > 0:
			all = append(all, setting{"pids.max", strconv.FormatInt(l.PIDs, 10), false})
		}
	}
	return all
}

func write(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}
