package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

func TestClassify(t *testing.T) {
	for err, want := range map[error]struct {
		kind    *faults.Kind
		outcome faults.Outcome
	}{
		errdefs.ErrNotFound:           {faults.SandboxNotFound, faults.NotStarted},
		errdefs.ErrInvalidArgument:    {faults.SandboxInvalid, faults.NotStarted},
		errdefs.ErrUnauthenticated:    {faults.SandboxDenied, faults.NotStarted},
		errdefs.ErrPermissionDenied:   {faults.SandboxDenied, faults.NotStarted},
		errdefs.ErrConflict:           {faults.SandboxConflict, faults.NotStarted},
		errdefs.ErrFailedPrecondition: {faults.SandboxConflict, faults.NotStarted},
		errdefs.ErrResourceExhausted:  {faults.SandboxThrottled, faults.NotStarted},
		errdefs.ErrNotImplemented:     {faults.SandboxUnsupported, faults.NotStarted},
		errdefs.ErrUnavailable:        {faults.SandboxUnavailable, faults.Unknown},
		errdefs.ErrInternal:           {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrUnknown:            {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrDataLoss:           {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrAborted:            {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrAlreadyExists:      {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrOutOfRange:         {faults.SandboxResponse, faults.Unknown},
		errdefs.ErrNotModified:        {faults.SandboxResponse, faults.Unknown},

		io.EOF:              {faults.SandboxUnavailable, faults.Unknown},
		io.ErrUnexpectedEOF: {faults.SandboxUnavailable, faults.Unknown},
		net.ErrClosed:       {faults.SandboxUnavailable, faults.Unknown},
		syscall.EPIPE:       {faults.SandboxUnavailable, faults.Unknown},
		syscall.ECONNRESET:  {faults.SandboxUnavailable, faults.Unknown},
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}: {faults.SandboxUnavailable, faults.NotStarted},
		&net.OpError{Op: "dial", Err: syscall.ENOENT}:       {faults.SandboxUnavailable, faults.NotStarted},
		&net.OpError{Op: "dial", Err: syscall.EACCES}:       {faults.SandboxDenied, faults.NotStarted},
		&net.OpError{Op: "read", Err: syscall.ETIMEDOUT}:    {faults.SandboxUnavailable, faults.Unknown},
		errUnanswered: {faults.SandboxUnavailable, faults.Unknown},
		&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}: {faults.SandboxDenied, faults.NotStarted},
		&net.OpError{Op: "remote error", Err: errors.New("an alert")}:        {faults.SandboxDenied, faults.NotStarted},
		http.ErrSchemeMismatch:                                {faults.SandboxInvalid, faults.NotStarted},
		json.Unmarshal([]byte("<html>"), new(int)):            {faults.SandboxResponse, faults.Unknown},
		errors.New("connection refused, no such file, 404"):   {faults.SandboxResponse, faults.Unknown},
		fmt.Errorf("text around: %w", errdefs.ErrUnavailable): {faults.SandboxUnavailable, faults.Unknown},
	} {
		f := faults.Of(classify("op", seen{}, err, faults.SandboxNotFound))
		if f.Kind != want.kind || f.Outcome != want.outcome || !errors.Is(f, err) {
			t.Errorf("%v: %v, outcome %q, want %s, %q, and the error as its cause", err, f, f.Outcome, want.kind.Code(), want.outcome)
		}
	}
}

// statuses are real responses to a look-up, and what they mean. missing is the
// kind that a 404 has there.
var statuses = map[int]*faults.Kind{
	400: faults.SandboxInvalid, 401: faults.SandboxDenied, 403: faults.SandboxDenied, 404: faults.SandboxNotFound,
	408: faults.SandboxUnavailable, 409: faults.SandboxConflict, 412: faults.SandboxConflict, 418: faults.SandboxResponse,
	429: faults.SandboxThrottled, 500: faults.SandboxResponse, 501: faults.SandboxUnsupported, 502: faults.SandboxUnavailable,
	503: faults.SandboxUnavailable, 504: faults.SandboxUnavailable, 507: faults.SandboxDiskFull, 599: faults.SandboxResponse,
}

func TestResponses(t *testing.T) {
	for status, want := range statuses {
		for _, body := range []string{`{"message":"no such container: 404"}`, "<html>502 Bad Gateway</html>", ""} {
			p := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "17")
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				io.WriteString(w, body)
			})
			_, err := p.Get(t.Context(), someID)
			f := faults.Of(err)
			if f == nil || f.Kind != want {
				t.Errorf("%d %q: %v, want %s", status, body, err, want.Code())
			}
			if asked := f.RetryAfter == 17*time.Second; asked != (want == faults.SandboxThrottled || want == faults.SandboxUnavailable) {
				t.Errorf("%d: retry after %s", status, f.RetryAfter)
			}
		}
	}
}

func TestNoDaemon(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		c.Close()
	}))
	defer mute.Close()
	for host, outcome := range map[string]faults.Outcome{
		"unix://" + dir + "/none":                     faults.NotStarted,
		"unix://" + stale:                             faults.NotStarted,
		strings.Replace(closed.URL, "http", "tcp", 1): faults.NotStarted,
		strings.Replace(mute.URL, "http", "tcp", 1):   faults.Unknown,
		"ssh://nobody@127.0.0.1:1":                    faults.Unknown,
	} {
		p := open(t, func(c *Config) { c.Host = host })
		_, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
		if f := faults.Of(err); f == nil || f.Kind != faults.SandboxUnavailable || f.Outcome != outcome {
			t.Errorf("%s: %v, outcome %v", host, err, f)
		}
	}
}

// The client says that permission was denied in words only.
func TestNoPermission(t *testing.T) {
	if os.Getuid() == 0 {
		// Nothing is refused to root, so the dialer refuses.
		p := open(t, func(c *Config) { c.Host = "unix:///nowhere" })
		refuse := client.WithDialContext(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
		})
		c, err := client.New(client.WithHost("unix:///nowhere"), refuse)
		if err != nil {
			t.Fatal(err)
		}
		p.client = c
		_, err = p.List(t.Context())
		if !errors.Is(err, faults.SandboxDenied) {
			t.Errorf("got %v", err)
		}
	}
}

func FuzzResponses(f *testing.F) {
	for status := range statuses {
		f.Add(status, "application/json", []byte(`{"message":"x"}`))
	}
	f.Add(200, "application/json", []byte(`{"Id":`))
	f.Add(200, "", []byte("<html>"))
	f.Add(204, "application/json", []byte(`{"State":null,"Config":null}`))
	var status int
	var kind string
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pingOrVersion(w, r) {
			return
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	f.Cleanup(server.Close)
	p, err := New(Config{Host: strings.Replace(server.URL, "http", "tcp", 1), Installation: "fuzz", Image: "image", Log: zerolog.Nop()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { p.Close() })
	f.Fuzz(func(t *testing.T, s int, k string, b []byte) {
		if s < 200 || s > 599 || len(b) > 64<<10 {
			t.Skip()
		}
		status, kind, body = s, k, b
		for name, op := range map[string]func() error{
			"get":    func() error { _, err := p.Get(t.Context(), someID); return err },
			"list":   func() error { _, err := p.List(t.Context()); return err },
			"create": func() error { _, err := p.Create(limited(t), sandbox.HostSpec{Key: "key"}); return err },
			"delete": func() error { return p.Delete(limited(t), someID) },
			"pull":   func() error { return p.pull(t.Context()) },
			"exec": func() error {
				_, err := (&container{provider: p, id: someID}).Run(limited(t), []string{"true"}, sandbox.Stdio{})
				return err
			},
		} {
			err := op()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && (!faults.Classified(err) || faults.Of(err).Kind == faults.Internal) {
				t.Errorf("%s: %d %q %q: %v has no kind", name, s, k, b, err)
			}
		}
	})
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
