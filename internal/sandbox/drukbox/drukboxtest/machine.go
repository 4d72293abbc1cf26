package drukboxtest

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// machine is a host as SSH sees it: OpenSSH's sshd in namespaces of its own,
// with a user, a home and a /tmp of its own. Killing it ends everything in it.
type machine struct {
	dir  string // etc/ with sshd's files, home/
	user string
	disk int64 // bytes of its home, which is in memory then; 0: home/
	port int

	hostKeys map[string][]byte // by type, as the control plane knows them

	mu  sync.Mutex
	cmd *exec.Cmd
	out chan struct{} // closed when it is dead
}

const sshd = "/usr/sbin/sshd"

// brokenShell is what a gateway says when it cannot reach a host; it exits
// with the status that ssh itself uses.
const brokenShell = `#!/bin/sh
[ ! -e /run/host/broken ] || { echo "cannot open a session for this host" >&2; exit 255; }
exec /bin/sh "$@"
`

// newMachine starts a host that the holder of authorized may enter as user.
func newMachine(dir, user string, disk int64, authorized ssh.PublicKey) (m *machine, err error) {
	m = &machine{dir: dir, user: user, disk: disk}
	for name, content := range map[string]string{
		"authorized_keys": string(ssh.MarshalAuthorizedKey(authorized)),
		"passwd":          fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\n%s:x:1000:1000::/home/%[1]s:/run/host/shell\n", user),
		"group":           fmt.Sprintf("root:x:0:\n%s:x:1000:\n", user),
		"shell":           brokenShell,
	} {
		if err := m.write(name, content, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "home"), 0o755); err != nil {
		return nil, err
	}
	if m.hostKeys, err = m.makeHostKeys(); err != nil {
		return nil, err
	}
	return m, m.boot()
}

// boot starts sshd, on a port that was free a moment ago.
func (m *machine) boot() error {
	var err error
	for range 5 {
		if m.port, err = freePort(); err != nil {
			return err
		}
		if err = m.start(); err == nil {
			return nil
		}
	}
	return err
}

func (m *machine) start() error {
	config := fmt.Sprintf(`Port %d
ListenAddress 127.0.0.1
HostKey /run/host/ssh_host_ecdsa_key
HostKey /run/host/ssh_host_ed25519_key
AuthorizedKeysFile /run/host/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
AllowTcpForwarding no
AllowAgentForwarding no
X11Forwarding no
Subsystem sftp internal-sftp
`, m.port)
	if err := m.write("sshd_config", config, 0o644); err != nil {
		return err
	}
	etc := filepath.Join(m.dir, "etc")
	home := []string{"--bind", filepath.Join(m.dir, "home"), "/home/" + m.user}
	if m.disk > 0 {
		home = []string{"--size", strconv.FormatInt(m.disk, 10), "--tmpfs", "/home/" + m.user}
	}
	cmd := exec.Command("bwrap", slices.Concat([]string{
		"--unshare-user", "--unshare-pid", "--unshare-ipc", "--uid", "1000", "--gid", "1000", "--die-with-parent",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home",
	}, home, []string{
		"--ro-bind", etc, "/run/host",
		"--ro-bind", filepath.Join(etc, "passwd"), "/etc/passwd", "--ro-bind", filepath.Join(etc, "group"), "/etc/group",
		sshd, "-D", "-e", "-f", "/run/host/sshd_config",
	})...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready, dead := make(chan struct{}), make(chan struct{})
	var said bytes.Buffer
	go func() {
		defer close(dead)
		lines := bufio.NewScanner(log)
		for listening := false; lines.Scan(); {
			if !listening && strings.HasPrefix(lines.Text(), "Server listening on") {
				listening = true
				close(ready)
			}
			if !listening {
				said.WriteString(lines.Text() + "\n")
			}
		}
		_, _ = io.Copy(io.Discard, log)
		_ = cmd.Wait()
	}()
	select {
	case <-ready:
	case <-dead:
		return fmt.Errorf("sshd did not start: %s", said.String())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.out = cmd, dead
	return nil
}

// kill ends the host and everything in it.
func (m *machine) kill() {
	m.mu.Lock()
	cmd, dead := m.cmd, m.out
	m.mu.Unlock()
	_ = cmd.Process.Kill()
	<-dead
}

func (m *machine) remove() {
	m.kill()
	// What is in it may be read-only directories.
	_ = filepath.WalkDir(m.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(m.dir)
}

// signal sends sig to every sshd of the host, and to nothing else in it.
func (m *machine) signal(sig syscall.Signal) {
	sshds, _ := m.processes()
	for _, pid := range sshds {
		_ = syscall.Kill(pid, sig)
	}
}

// processes are those of the host: its sshds, one and more for each connection,
// and the others.
func (m *machine) processes() (sshds, others []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pid := range descendants(m.cmd.Process.Pid) {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(name), "sshd") {
			sshds = append(sshds, pid)
		} else {
			others = append(others, pid)
		}
	}
	return sshds, others
}

func descendants(pid int) []int {
	var all []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(field)
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

func (m *machine) write(name, content string, mode os.FileMode) error {
	path := filepath.Join(m.dir, "etc", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// keyPair is what the control plane mints for a host.
func keyPair() (private string, public ssh.PublicKey, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return "", nil, err
	}
	public, err = ssh.NewPublicKey(pub)
	return string(pem.EncodeToMemory(block)), public, err
}

// stamp is a time in one of the two forms that the control plane uses.
func stamp(t time.Time, zulu bool) string {
	layout := "2006-01-02T15:04:05.000000+00:00"
	if zulu {
		layout = "2006-01-02T15:04:05.000000Z"
	}
	return t.UTC().Format(layout)
}
