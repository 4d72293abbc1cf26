package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

const testImage = "executor-test:busybox"

// The tests need a daemon, and fail without one. .ci/dockerd starts one.
func TestMain(m *testing.M) {
	sandboxtest.Executor(other)
	if err := buildImage(daemonHost()); err != nil {
		fmt.Fprintf(os.Stderr, "no Docker to test with (%v): %v\n.ci/dockerd starts one\n", daemonHost(), err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func daemonHost() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return client.DefaultDockerHost
}

// buildImage makes an image of what the machine has, since no registry may be
// asked: busybox, and flock, which Debian's lacks.
func buildImage(host string) error {
	archive, err := imageArchive(nil)
	if err != nil {
		return err
	}
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := c.ImageImport(ctx, client.ImageImportSource{Source: archive, SourceName: "-"}, testImage, client.ImageImportOptions{})
	if err != nil {
		return err
	}
	defer result.Close()
	_, err = new(bytes.Buffer).ReadFrom(result)
	return err
}

// imageArchive is an image's file system, with some files more.
func imageArchive(more map[string]string) (*bytes.Buffer, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	flock, err := exec.LookPath("flock")
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	has := map[string]bool{} // busybox lists some of its applets twice
	add := func(name string, mode int64, content []byte) {
		has[name] = true
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg})
		_, _ = w.Write(content)
	}
	file := func(path, name string) error {
		content, err := os.ReadFile(path)
		add(name, 0o755, content)
		return err
	}
	if err := file(busybox, "bin/busybox"); err != nil {
		return nil, err
	}
	if err := file(flock, "bin/flock"); err != nil {
		return nil, err
	}
	for _, program := range []string{busybox, flock} {
		needs, _ := exec.Command("ldd", program).Output() // of a static one: nothing
		for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(needs), -1) {
			if name := strings.TrimPrefix(lib, "/"); !has[name] {
				if err := file(lib, name); err != nil {
					return nil, err
				}
			}
		}
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(string(applets)) {
		if name := "bin/" + applet; !has[name] {
			has[name] = true
			_ = w.WriteHeader(&tar.Header{Name: name, Linkname: "busybox", Typeflag: tar.TypeSymlink})
		}
	}
	add("etc/passwd", 0o644, []byte("root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n"))
	add("etc/group", 0o644, []byte("root:x:0:\nagent:x:1000:\n"))
	for name, content := range more {
		add(name, 0o644, []byte(content))
	}
	return &buf, w.Close()
}

// open returns a provider of an installation of the test's own.
func open(t *testing.T, change ...func(*Config)) *Provider {
	t.Helper()
	cfg := Config{
		Host: daemonHost(), Installation: "test-" + t.Name(), Image: testImage, Pull: PullNever,
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel),
	}
	for _, c := range change {
		c(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// create makes a host that goes with the test, and dials it.
func create(t *testing.T, p *Provider, network ...bool) (sandbox.Host, sandbox.Conn) {
	t.Helper()
	host, err := p.Create(t.Context(), sandbox.HostSpec{Key: sandbox.Key(t.Name()), RunID: "run", Network: len(network) > 0})
	if err != nil {
		t.Fatal("create:", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := p.Delete(ctx, host.ID); err != nil {
			t.Error("delete:", err)
		}
	})
	conn, err := p.Dial(t.Context(), host)
	if err != nil {
		t.Fatal("dial:", err)
	}
	return host, conn
}

// sh runs a script in a host.
func sh(t *testing.T, conn sandbox.Conn, script string) (sandbox.Exit, string) {
	t.Helper()
	var out, errs bytes.Buffer
	exit, err := conn.Exec(t.Context(), shell(script), sandbox.Stdio{Out: &out, Err: &errs})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return exit, out.String() + errs.String()
}

func shell(script string) sandbox.Command {
	return sandbox.Command{Argv: []string{"sh", "-c", script}}
}

// through works with a host by everything that is a connection of its own kind:
// bytes both ways at once, and output that is followed.
func through(t *testing.T, p *Provider) {
	t.Helper()
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
		t.Errorf("follow: %+v, %v", exit, err)
	}
}
