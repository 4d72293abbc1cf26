package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// overSSH dials a daemon as Docker's own tools do: each connection is the
// streams of "docker system dial-stdio" on the other machine. ssh does the rest
// by its own configuration: keys, known hosts, and one connection for all of
// them if it says ControlMaster.
func overSSH(at *url.URL) (func(context.Context, string, string) (net.Conn, error), error) {
	if at.Hostname() == "" || strings.HasPrefix(at.Hostname(), "-") || strings.HasPrefix(at.User.Username(), "-") {
		return nil, fmt.Errorf("docker: %q names no host", at)
	}
	if at.Path != "" && at.Path != "/" {
		return nil, fmt.Errorf("docker: %q has a path", at)
	}
	argv := []string{"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15"}
	if user := at.User.Username(); user != "" {
		argv = append(argv, "-l", user)
	}
	if port := at.Port(); port != "" {
		argv = append(argv, "-p", port)
	}
	argv = append(argv, "--", at.Hostname(), "docker", "system", "dial-stdio")
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return dialCommand(ctx, "ssh", argv) }, nil
}

// dialCommand is a connection to the streams of a program.
func dialCommand(ctx context.Context, name string, argv []string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	cmd := exec.Command(name, argv...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: Wait would close exec's under a reader.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &commandConn{cmd: cmd, in: in, out: out, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = theirs, &c.said
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		out.Close()
		return nil, &net.OpError{Op: "dial", Net: name, Err: err}
	}
	go func() {
		_ = cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// endLimit is how long a program may live after the end of its output.
const endLimit = 10 * time.Second

// commandConn is the streams of a running program.
type commandConn struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *os.File
	said  tail
	ended chan struct{}
}

func (c *commandConn) Read(p []byte) (int, error) {
	n, err := c.out.Read(p)
	if err == io.EOF {
		err = c.end()
	}
	return n, err
}

// end is what the end of the output means: that of the connection, or that it
// broke. What a program says beside that is no evidence: ssh has banners and
// warnings to tell.
func (c *commandConn) end() error {
	how := "it goes on without output"
	select {
	case <-c.ended:
		if c.cmd.ProcessState.Success() {
			return io.EOF
		}
		how = c.cmd.ProcessState.String()
	case <-time.After(endLimit):
	}
	err := fmt.Errorf("%w: %s", io.ErrUnexpectedEOF, how)
	if said := c.said.String(); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return &net.OpError{Op: "read", Net: "ssh", Err: err}
}

func (c *commandConn) Write(p []byte) (int, error) { return c.in.Write(p) }
func (c *commandConn) CloseWrite() error           { return c.in.Close() }

// Close ends the program.
func (c *commandConn) Close() error {
	_ = c.in.Close()
	_ = c.out.Close()
	_ = c.cmd.Process.Kill()
	return nil
}

func (c *commandConn) LocalAddr() net.Addr                { return commandAddr{} }
func (c *commandConn) RemoteAddr() net.Addr               { return commandAddr{} }
func (c *commandConn) SetDeadline(t time.Time) error      { return c.out.SetDeadline(t) }
func (c *commandConn) SetReadDeadline(t time.Time) error  { return c.out.SetReadDeadline(t) }
func (c *commandConn) SetWriteDeadline(t time.Time) error { return nil }

type commandAddr struct{}

func (commandAddr) Network() string { return "ssh" }
func (commandAddr) String() string  { return "ssh" }

// tail keeps the last of what a program says on its stderr.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
