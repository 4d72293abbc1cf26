package docker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// sshServer is the way to a machine with a daemon: OpenSSH's, on a port of its own. It
// lets in who has the key of the test.
type sshServer struct {
	dir     string
	address string
	url     string
}

// at changes the configuration of a provider to the daemon behind the server.
func (s *sshServer) at(c *Config) { c.Host = s.url }

func startSSHServer(t *testing.T, docker string, options ...string) *sshServer {
	t.Helper()
	const sshd = "/usr/sbin/sshd"
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // Debian's wants it of root
			t.Fatal(err)
		}
	}
	s := &sshServer{dir: t.TempDir(), address: freeAddress(t)}
	s.url = "ssh://" + me.Username + "@" + s.address
	host, port, _ := net.SplitHostPort(s.address)
	for _, key := range []string{"server", "user", "stranger"} {
		run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, key))
	}
	public, err := os.ReadFile(s.dir + "/server.pub")
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.dir+"/known", fmt.Sprintf("[%s]:%s %s", host, port, public))
	config := strings.Join(append(options,
		"Port "+port, "ListenAddress "+host, "HostKey "+s.dir+"/server", "AuthorizedKeysFile "+s.dir+"/user.pub",
		"PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no", "PidFile none",
		"PermitRootLogin yes", "SetEnv DOCKER_HOST="+docker,
	), "\n")
	write(t, s.dir+"/sshd_config", config+"\n")
	cmd := exec.Command(sshd, "-D", "-e", "-f", s.dir+"/sshd_config")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal("apt-get install openssh-server:", err)
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	var said bytes.Buffer
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
			if strings.HasPrefix(lines.Text(), "Server listening on") {
				close(ready)
				break
			}
		}
		_, _ = io.Copy(io.Discard, log)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); <-ended })
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("sshd did not start: %s", said.String())
	}
	return s
}

// client makes the ssh that is found first one with a configuration.
func (s *sshServer) client(t *testing.T, options ...string) {
	t.Helper()
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal("apt-get install openssh-client:", err)
	}
	bin := t.TempDir()
	config := append(options, "IdentitiesOnly yes", "UserKnownHostsFile "+s.dir+"/known", "StrictHostKeyChecking yes")
	if !slices.ContainsFunc(options, func(option string) bool { return strings.HasPrefix(option, "IdentityFile ") }) {
		config = append(config, "IdentityFile "+s.dir+"/user")
	}
	write(t, bin+"/config", strings.Join(config, "\n")+"\n")
	if err := os.WriteFile(bin+"/ssh", []byte("#!/bin/sh\nexec "+ssh+" -F "+bin+"/config \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// Through a real sshd, whose ssh has more to say than the daemon: what it says
// is no error.
func TestOverSSH(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/banner", strings.Repeat("No trespassing.\n", 1000))
	s := startSSHServer(t, daemonHost(), "Banner "+dir+"/banner")
	for name, options := range map[string][]string{
		"connections of their own":       nil,
		"one connection, which persists": {"ControlMaster auto", "ControlPath " + dir + "/%C", "ControlPersist 5"},
	} {
		t.Run(name, func(t *testing.T) {
			s.client(t, options...)
			p := open(t, s.at)
			through(t, p)
			_, conn := create(t, p)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					unread := bytes.NewReader(make([]byte, 1<<20))
					exit, err := conn.Exec(t.Context(), shell("exit 3"), sandbox.Stdio{In: unread})
					if err != nil || exit.Code != 3 {
						t.Errorf("%+v, %v", exit, err)
					}
				})
			}
			wg.Wait()
		})
	}
	for name, test := range map[string]struct{ option, says string }{
		"a key that it does not know":    {"IdentityFile " + s.dir + "/stranger", "Permission denied"},
		"a host key that we do not know": {"UserKnownHostsFile /dev/null", "Host key verification failed"},
	} {
		t.Run(name, func(t *testing.T) {
			s.client(t, test.option)
			_, err := open(t, s.at).Create(t.Context(), sandbox.HostSpec{Key: "key"})
			if !errors.Is(err, faults.SandboxUnavailable) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want it to say %q", err, test.says)
			}
		})
	}
	t.Run("no docker there", func(t *testing.T) {
		s := startSSHServer(t, daemonHost(), "SetEnv PATH=/nowhere")
		s.client(t)
		_, err := open(t, s.at).Create(t.Context(), sandbox.HostSpec{Key: "key"})
		if !errors.Is(err, faults.SandboxUnavailable) || !strings.Contains(err.Error(), "exit status 127") {
			t.Error(err)
		}
	})
}
