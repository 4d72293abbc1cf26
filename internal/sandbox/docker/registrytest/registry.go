// Package registrytest runs real registries for tests: Debian's
// docker-registry, each on a port of its own. A daemon takes plain HTTP from
// those of its own machine.
package registrytest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// User and Password of a registry that asks for them.
const (
	User     = "robot"
	Password = "canary-of-the-registry"
)

// Registry is a running registry.
type Registry struct {
	Address string // host:port: what the names of its images begin with
	Locked  bool   // it lets in nobody but User
	stop    func()
}

// Start starts a registry that ends with the test.
func Start(t testing.TB, locked bool) *Registry {
	t.Helper()
	dir := t.TempDir()
	config := "version: 0.1\nstorage: {filesystem: {rootdirectory: " + dir + "/data}}\nhttp: {addr: '127.0.0.1:0'}\n"
	if locked {
		hash, err := bcrypt.GenerateFromPassword([]byte(Password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/htpasswd", User+":"+string(hash)+"\n")
		config += "auth: {htpasswd: {realm: test, path: " + dir + "/htpasswd}}\n"
	}
	write(t, dir+"/config.yml", config)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "docker-registry", "serve", dir+"/config.yml")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal("apt-get install docker-registry:", err)
	}
	found, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if _, after, ok := strings.Cut(lines.Text(), "listening on "); ok {
				address, _, _ := strings.Cut(after, `"`)
				found <- address
				break
			}
		}
		_, _ = io.Copy(io.Discard, log)
	}()
	r := &Registry{Locked: locked, stop: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})}
	t.Cleanup(r.stop)
	select {
	case r.Address = <-found:
	case <-ended:
		t.Fatal("docker-registry did not start")
	}
	return r
}

// Stop ends it: its port refuses.
func (r *Registry) Stop() { r.stop() }

// Image is the name of an image in it.
func (r *Registry) Image(name string) string { return r.Address + "/" + name }

// Behind is the address of a proxy before the registry, which breaks what goes
// through it: handle returns whether it has answered itself.
func (r *Registry) Behind(t testing.TB, handle func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Address})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !handle(w, request) {
			forward.ServeHTTP(w, request)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
