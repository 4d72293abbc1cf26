package remote

import (
	"errors"
	"strings"
	"testing"

	"executor/internal/faults"
)

// What a write failed of is told by the room that is left.
func TestFailure(t *testing.T) {
	for said, want := range map[string]*faults.Kind{
		"mkdir":                      faults.SandboxDenied, // no stat there
		"mkdir 1000000 4096 500 900": faults.SandboxDenied,
		"mkdir 1000000 4096 0 0":     faults.SandboxDenied, // btrfs does not count inodes
		"mkdir 1000000 4096 0 900":   faults.SandboxDiskFull,
		"mkdir 10 4096 500 900":      faults.SandboxDiskFull,
		"mkdir 0 4096 0 0":           faults.SandboxDiskFull,
	} {
		err := answer{word: "failed", args: strings.Fields(said)}.fault("upload")
		if !errors.Is(err, want) || faults.Of(err).Outcome != faults.NotStarted {
			t.Errorf("%s: %v", said, err)
		}
	}
}
