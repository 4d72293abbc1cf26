package docker

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"executor/internal/sandbox"
)

// The daemon is reached over the streams of a program. What stands for ssh here
// does what the real one does on the other machine.
func TestOverSSH(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n[ \"$2\" = somewhere ] || exit 255\nshift 2\n" +
		"DOCKER_HOST=" + daemonHost() + " exec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	p := open(t, func(c *Config) { c.Host = "ssh://user@somewhere:2222" })
	_, conn := create(t, p)
	in := bytes.Repeat([]byte("\x00\xff\r\n"), 1<<18)
	if err := conn.Upload(t.Context(), "file", 0o600, bytes.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	exit, err := conn.Exec(t.Context(), shell("cat file -"), sandbox.Stdio{In: bytes.NewReader(in), Out: &out})
	if err != nil || !exit.Success() || !bytes.Equal(out.Bytes(), append(in[:len(in):len(in)], in...)) {
		t.Errorf("%+v, %v, %d bytes", exit, err, out.Len())
	}
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	if _, err := conn.Start(t.Context(), launch, shell("exit 7")); err != nil {
		t.Fatal(err)
	}
	if exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, discard); err != nil || exit.Code != 7 {
		t.Errorf("%+v, %v", exit, err)
	}
}
