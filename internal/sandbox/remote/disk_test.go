package remote_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// What may not be written is not full.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		root := tiny(t)
		p := &provider{root: root, shell: "/bin/" + shell, path: os.Getenv("PATH")}
		host, err := p.Create(t.Context(), sandbox.HostSpec{Key: "host"})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := p.Dial(t.Context(), host)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("", root, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if err := conn.Upload(t.Context(), "file", 0o644, strings.NewReader("x")); !errors.Is(err, faults.SandboxDenied) {
			t.Errorf("%s: upload: %v", shell, err)
		}
		if _, err := conn.Start(t.Context(), launch, sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, faults.SandboxDenied) {
			t.Errorf("%s: start: %v", shell, err)
		}
	}
}
