package drukbox

import (
	"context"
	"errors"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/remote"
	"executor/internal/sandbox/sshconn"
)

// remoteHost is the way to one host: an SSH connection that is made anew when
// it is needed and the last one is over. Before each dial the control plane is
// asked where the host is, and whether it is there.
type remoteHost struct {
	provider *Provider
	id       string
	alive    context.Context // until Close
	quit     context.CancelFunc

	dialing chan struct{} // of whoever dials; nil: nobody does
	mu      sync.Mutex
	ssh     *sshconn.Conn
	row     row // as of the last dial
}

var _ remote.Host = (*remoteHost)(nil)

// Run implements remote.Host.
func (h *remoteHost) Run(ctx context.Context, argv []string, stdio sandbox.Stdio) (int, error) {
	const op = "run over ssh"
	conn, fresh, err := h.connected(ctx)
	if err != nil {
		return 0, err
	}
	command := commandLine(argv)
	err = conn.Run(ctx, command, stdio.In, stdio.Out, stdio.Err)
	var open *sshconn.OpenError
	if errors.As(err, &open) && !fresh && sshconn.Broken(err) && ctx.Err() == nil {
		// The connection was over and nobody had noticed. Nothing was run.
		_ = conn.Close()
		if conn, _, err = h.connected(ctx); err != nil {
			return 0, err
		}
		err = conn.Run(ctx, command, stdio.In, stdio.Out, stdio.Err)
	}
	var exit *ssh.ExitError
	if errors.As(err, &exit) {
		return exit.ExitStatus(), nil
	}
	return 0, sshconn.Fault(ctx, op, err)
}

// gatewayFailed is the status with which a gateway ends a session that it
// could not open. A command may end with it too.
const gatewayFailed = 255

// Diagnose implements remote.Host: the control plane knows whether the host is
// gone, and a command that cannot fail tells whether its gateway reaches it.
func (h *remoteHost) Diagnose(ctx context.Context) error {
	const op = "look after host"
	if _, err := h.provider.live(ctx, op, h.id); err != nil {
		return err
	}
	conn := h.current()
	if conn == nil {
		return faults.New(faults.SandboxUnavailable, op, errors.New("the connection to the host broke"))
	}
	err := conn.Run(ctx, "exit 0", nil, nil, nil)
	var exit *ssh.ExitError
	if errors.As(err, &exit) && exit.ExitStatus() == gatewayFailed {
		return faults.New(faults.SandboxUnavailable, op, errors.New("the gateway cannot open a session for the host"))
	}
	if errors.As(err, &exit) {
		return nil
	}
	return sshconn.Fault(ctx, op, err)
}

// Close implements remote.Host.
func (h *remoteHost) Close() error {
	h.quit()
	h.mu.Lock()
	conn := h.ssh
	h.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	return nil
}

// current is the connection if it is not over.
func (h *remoteHost) current() *sshconn.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ssh == nil {
		return nil
	}
	select {
	case <-h.ssh.Done():
		return nil
	default:
		return h.ssh
	}
}

func (h *remoteHost) lastRow() row {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.row
}

// commandLine is argv for a login shell. exec spares the host a process.
func commandLine(argv []string) string {
	var b strings.Builder
	b.WriteString("exec")
	for _, arg := range argv {
		b.WriteString(" '" + strings.ReplaceAll(arg, "'", `'\''`) + "'")
	}
	return b.String()
}
