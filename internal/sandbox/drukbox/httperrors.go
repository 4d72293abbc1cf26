package drukbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"executor/internal/faults"
)

// statusError is an answer of the control plane, or of a proxy in front of it,
// that is no success.
type statusError struct {
	call       string // such as "POST /hosts"
	status     int
	mediaType  string
	ours       bool   // the body has the control plane's shape
	code       string // its error_code; most answers have none
	detail     string // as it was sent; to be compared with a row's last_error
	shown      string // the same for people, without our token
	retryAfter time.Duration
}

// Error shows no body of somebody else's: a proxy may echo the request.
func (e *statusError) Error() string {
	s := fmt.Sprintf("%s: status %d", e.call, e.status)
	if !e.ours {
		return s + ", which is not the control plane's own answer (" + strconv.Quote(clip(e.mediaType, 100)) + ")"
	}
	if e.code != "" {
		s += " " + clip(e.code, 100)
	}
	return s + ": " + clip(e.shown, 1000)
}

// transportError is a request without a whole answer.
type transportError struct {
	call   string
	sent   bool // there was a connection: something may have arrived
	status int  // of an answer that broke off; else 0
	cause  error
}

func (e *transportError) Error() string { return e.call + ": " + e.cause.Error() }
func (e *transportError) Unwrap() error { return e.cause }

// bodyError is a success that cannot be read.
type bodyError struct {
	call   string
	status int
	cause  error
}

func (e *bodyError) Error() string {
	return fmt.Sprintf("%s: status %d with a body that is not the control plane's: %v", e.call, e.status, e.cause)
}
func (e *bodyError) Unwrap() error { return e.cause }

// byCode is what the control plane's own codes mean where it is more than
// their status says.
var byCode = map[string]*faults.Kind{
	"HOST_TEARDOWN":          faults.SandboxUnavailable, // the row stays; deleting again is safe
	"PROVISIONING_FAILED":    faults.SandboxProvisioning,
	"HTTP_PROXY_UNSUPPORTED": faults.SandboxUnsupported,
	"TEMPLATE_NOT_AVAILABLE": faults.SandboxProvisioning, // it is being built, or its build failed

	"SECRETS_PROXY_NOT_CONFIGURED": faults.SandboxInvalid,
}

// byStatus is what a status means. Others are sandbox_response.
var byStatus = map[int]*faults.Kind{
	http.StatusBadRequest:            faults.SandboxInvalid,
	http.StatusUnauthorized:          faults.SandboxDenied,
	http.StatusPaymentRequired:       faults.SandboxQuota,
	http.StatusForbidden:             faults.SandboxDenied,
	http.StatusProxyAuthRequired:     faults.SandboxDenied,
	http.StatusRequestTimeout:        faults.SandboxTimeout,
	http.StatusConflict:              faults.SandboxConflict,
	http.StatusRequestEntityTooLarge: faults.SandboxInvalid,
	http.StatusUnprocessableEntity:   faults.SandboxInvalid,
	http.StatusTooManyRequests:       faults.SandboxThrottled,
	http.StatusNotImplemented:        faults.SandboxUnsupported,
	http.StatusBadGateway:            faults.SandboxUnavailable, // of a proxy; the control plane's own has a code
	http.StatusServiceUnavailable:    faults.SandboxUnavailable,
	http.StatusGatewayTimeout:        faults.SandboxUnavailable,
	http.StatusInsufficientStorage:   faults.SandboxCapacity, // the control plane's disk, not a host's
}

// refused are statuses of a request that was turned away before anything was
// done.
var refused = map[int]bool{
	http.StatusBadRequest: true, http.StatusUnauthorized: true, http.StatusPaymentRequired: true, http.StatusForbidden: true,
	http.StatusProxyAuthRequired: true, http.StatusNotFound: true, http.StatusRequestEntityTooLarge: true,
	http.StatusUnprocessableEntity: true, http.StatusTooManyRequests: true, http.StatusNotImplemented: true,
}

// fault gives an error of api a kind. Our own context goes first; what has a
// kind keeps it.
//
// A 404 counts only with the code NOT_FOUND: without it, it may be a proxy's,
// or of a URL that is not drukbox at all. orGone finds out.
func fault(ctx context.Context, op string, err error) error {
	if err == nil || faults.Classified(err) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	f := faults.New(faults.SandboxResponse, op, err)
	var status *statusError
	var transport *transportError
	var body *bodyError
	switch {
	case errors.As(err, &status):
		f.RetryAfter = status.retryAfter
		f.Kind = statusKind(status)
		if refused[status.status] {
			f.Outcome = faults.NotStarted
		}
	case errors.As(err, &transport):
		f.Kind = faults.SandboxUnavailable
		if errors.Is(err, context.DeadlineExceeded) {
			f.Kind = faults.SandboxTimeout
		}
		if !transport.sent {
			f.Outcome = faults.NotStarted
		}
	case errors.As(err, &body):
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
	return f
}

func statusKind(e *statusError) *faults.Kind {
	if e.ours && e.status == http.StatusNotFound && e.code == "NOT_FOUND" {
		return faults.SandboxNotFound
	}
	if kind := byCode[e.code]; kind != nil && e.ours {
		return kind
	}
	if kind := byStatus[e.status]; kind != nil {
		return kind
	}
	return faults.SandboxResponse
}

// orGone is fault for a request about one host. The answer "host not found"
// comes without a code from some calls, so that the list of hosts decides:
// a control plane that shows one without the host is no wrong URL.
func (p *Provider) orGone(ctx context.Context, op, id string, err error) error {
	var status *statusError
	if !errors.As(err, &status) || !status.ours || status.status != http.StatusNotFound || status.code != "" {
		return fault(ctx, op, err)
	}
	rows, listErr := p.api.list(ctx)
	if listErr != nil {
		return fault(ctx, op, listErr)
	}
	for _, r := range rows {
		if r.ID == id {
			return fault(ctx, op, err)
		}
	}
	return faults.New(faults.SandboxNotFound, op, err)
}

// retryAfter reads both forms of the header; what is neither, or in the past,
// is nothing.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return max(0, time.Duration(min(seconds, 30*24*3600))*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
