package docker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/errdefs/pkg/errhttp"
	"github.com/moby/moby/client"

	"executor/internal/faults"
)

// seen is what the daemon's responses to one operation said beside the errors
// that the client makes of them: it drops headers, and of an exec that could
// not be attached to also the status.
type seen struct {
	status     int
	retryAfter time.Duration
}

type seenKey struct{}

func observed(ctx context.Context) (context.Context, *seen) {
	s := &seen{}
	return context.WithValue(ctx, seenKey{}, s), s
}

// observe is a hook of the client.
func observe(r *http.Response) {
	if r.Request == nil {
		return
	}
	if s, ok := r.Request.Context().Value(seenKey{}).(*seen); ok {
		s.status, s.retryAfter = r.StatusCode, retryAfter(r.Header.Get("Retry-After"))
	}
}

// retryAfter reads both forms of RFC 9110, 10.2.3.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// fault classifies what a call of the client returned. An error of our own
// context and what has a kind already come back unchanged. The client hides
// why the daemon's socket cannot be opened, so that is tried again.
func (p *Provider) fault(ctx context.Context, op string, s *seen, err error, missing *faults.Kind) error {
	if err == nil || ctx.Err() != nil || faults.Classified(err) {
		return err
	}
	if client.IsErrConnectionFailed(err) && !untrusted(err) {
		if conn, dial := p.client.Dialer()(ctx); dial == nil {
			conn.Close()
		} else {
			err = errors.Join(err, dial)
		}
	}
	return classify(op, *s, err, missing)
}

// classify is the one table of what errors mean. missing is what a 404 means to
// the operation.
//
//	permission to open the socket           sandbox_denied
//	a certificate, theirs or ours           sandbox_denied
//	TLS to a daemon without it              sandbox_invalid
//	no connection, or a broken one          sandbox_unavailable
//	404                                     missing
//	400                                     sandbox_invalid
//	401, 403                                sandbox_denied
//	409, 412                                sandbox_conflict
//	429                                     sandbox_throttled
//	501                                     sandbox_unsupported
//	408, 502, 503, 504                      sandbox_unavailable
//	507                                     sandbox_disk_full
//	500, and whatever else                  sandbox_response
func classify(op string, s seen, err error, missing *faults.Kind) error {
	kind, outcome := faults.SandboxResponse, faults.Unknown
	switch {
	case errors.Is(err, fs.ErrPermission), untrusted(err):
		kind, outcome = faults.SandboxDenied, faults.NotStarted
	case errors.Is(err, http.ErrSchemeMismatch):
		kind, outcome = faults.SandboxInvalid, faults.NotStarted
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		kind, outcome = faults.SandboxUnavailable, faults.NotStarted
	case client.IsErrConnectionFailed(err), broken(err):
		kind = faults.SandboxUnavailable
	default:
		kind, outcome = byStatus(status(s, err), missing)
	}
	return faults.New(kind, op, err).With(func(f *faults.Fault) {
		f.Outcome = outcome
		if kind == faults.SandboxThrottled || kind == faults.SandboxUnavailable {
			f.RetryAfter = s.retryAfter
		}
	})
}

// status is the HTTP status of an error: the daemon's where it was seen, since
// the client knows some only and folds the others into 400 and 500, and else by
// the error's class.
func status(s seen, err error) int {
	if s.status >= http.StatusBadRequest {
		return s.status
	}
	return errhttp.ToHTTP(err)
}

func byStatus(status int, missing *faults.Kind) (*faults.Kind, faults.Outcome) {
	switch status {
	case http.StatusNotFound:
		return missing, faults.NotStarted
	case http.StatusBadRequest:
		return faults.SandboxInvalid, faults.NotStarted
	case http.StatusUnauthorized, http.StatusForbidden:
		return faults.SandboxDenied, faults.NotStarted
	case http.StatusConflict, http.StatusPreconditionFailed:
		return faults.SandboxConflict, faults.NotStarted
	case http.StatusTooManyRequests:
		return faults.SandboxThrottled, faults.NotStarted
	case http.StatusNotImplemented:
		return faults.SandboxUnsupported, faults.NotStarted
	case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return faults.SandboxUnavailable, faults.Unknown
	case http.StatusInsufficientStorage:
		return faults.SandboxDiskFull, faults.Unknown
	}
	return faults.SandboxResponse, faults.Unknown
}

// untrusted reports whether TLS came to nothing: the daemon's certificate is not
// one of our authority's for its name and this time, or the daemon says so of
// ours, which reaches us as an alert.
func untrusted(err error) bool {
	var theirs *tls.CertificateVerificationError
	var alert *net.OpError
	return errors.As(err, &theirs) || errors.As(err, &alert) && alert.Op == "remote error"
}

// errUnanswered says that there was no response, where an error itself does not.
var errUnanswered = errors.New("the daemon did not answer")

// broken reports whether a connection ended where it should not.
func broken(err error) bool {
	var op *net.OpError
	var syntax *json.SyntaxError
	return errors.As(err, &op) || errors.Is(err, errUnanswered) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &syntax) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
