package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

type versionCmd struct{}

// Run is kong's.
func (versionCmd) Run(a *app) error {
	fmt.Fprintf(a.out, "executor %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// version is the release, else the commit that was built, else what go install
// was asked for.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if revision != "" {
		return revision + dirty
	}
	return info.Main.Version
}
