package sandboxtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Subject is a provider under test. Its hosts need a POSIX sh, coreutils,
// setsid and flock (busybox will do).
//
// What it leaves out is not tested, so that it leaves out only what its hosts
// cannot have.
type Subject struct {
	// Open returns a provider of one installation: each call as another
	// executor would open it.
	Open func(t *testing.T) sandbox.Provider
	// World is the installation for Executor: another process opens it by that.
	World string
	// Lined returns a provider of an installation of its own, and what stands
	// between it and its hosts; nil: nothing does.
	Lined func(t *testing.T) (sandbox.Provider, Line)
	// SmallDisk returns a provider whose hosts have less than 100 MB of disk.
	SmallDisk func(t *testing.T) sandbox.Provider
	// SmallMemory returns a provider whose hosts have 64 MB of memory.
	SmallMemory func(t *testing.T) sandbox.Provider
	// Processes counts the processes in a host, its own included; a connection's
	// own are none.
	Processes func(t *testing.T, p sandbox.Provider, host sandbox.Host) int
	// Left names what is left of the installation when its hosts are deleted:
	// processes, files, keys. It is called in the end, when t.Context is done.
	Left func(t *testing.T) []string
	// Ceiling is Open with a ceiling of output, in bytes. nil: it has none
	// that can be set.
	Ceiling func(t *testing.T, bytes int64) sandbox.Provider
	// GivesBack: what was read long ago takes no space on the disk.
	GivesBack bool
	// SharedFiles: hosts can see each other's files. A provider that cannot
	// help it has to say so to its users.
	SharedFiles bool
	// Light: another Subject of the same provider has the tests that take long.
	Light bool
}

const (
	canary   = "EXECUTOR_TEST_CANARY" // in our environment, and in no command's
	patience = 30 * time.Second       // for what takes milliseconds
	prompt   = 5 * time.Second        // and this is too long for what should be prompt
)

// Suite is what every provider has to pass.
func Suite(t *testing.T, subject Subject) {
	os.Setenv(canary, "leaked")
	nothingLeft(t, subject)
	t.Run("Forks", func(t *testing.T) { kill(t, subject, forks) }) // before the others, which it would hold up
	for _, group := range []struct {
		name  string
		here  bool
		tests map[string]func(*testing.T, Subject)
	}{
		{"Hosts", true, hostTests},
		{"Exec", true, execTests},
		{"Files", true, fileTests},
		{"Processes", true, processTests},
		{"Stop", true, stopTests},
		{"Ceiling", subject.Ceiling != nil, ceilingTests},
		{"Disk", subject.SmallDisk != nil, diskTests},
		{"Memory", subject.SmallMemory != nil, memoryTests},
		{"Executors", subject.World != "", executorTests},
		{"Lines", subject.Lined != nil, lineTests},
		{"Interrupted", !subject.Light, interruptTests},
		{"Bulk", !subject.Light, bulkTests},
	} {
		if !group.here {
			continue
		}
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for name, test := range group.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, subject)
				})
			}
		})
	}
}

// nothingLeft checks, when all tests of the subject are over, that no host of
// theirs is listed, and what Left has to say.
func nothingLeft(t *testing.T, subject Subject) {
	provider := subject.Open(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		hosts, err := provider.List(ctx)
		if err != nil {
			t.Error("list:", err)
		}
		for _, h := range hosts {
			if strings.HasPrefix(string(h.Key), keyPrefix) {
				t.Errorf("a host is left: %+v", h)
			}
		}
		if subject.Left == nil {
			return
		}
		var left []string
		if !eventually(func() bool { left = subject.Left(t); return len(left) == 0 }) {
			t.Errorf("left: %q", left)
		}
	})
}

// eventually waits until f is true.
func eventually(f func() bool) bool {
	for end := time.Now().Add(2 * prompt); ; time.Sleep(20 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// is checks an error's kind.
func is(t *testing.T, err error, kind *faults.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %s", err, kind.Code())
	}
}

// promptly checks that f does not take its time.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	within(t, prompt, what, f)
}

func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %s", what, took)
	}
}
