package drukbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// maxBody is more than a list of some ten thousand hosts.
const maxBody = 64 << 20

// api speaks HTTP to the control plane. Its errors are *statusError,
// *transportError and *bodyError, for fault to classify.
type api struct {
	base    *url.URL
	token   string
	request time.Duration
	http    *http.Client
	creates *http.Client // on connections that nothing was sent on before
	ahead   atomic.Int64 // how far the control plane's clock is ahead of ours, in ns
}

func newAPI(base *url.URL, cfg Config) *api {
	a := &api{base: base, token: cfg.Token, request: cfg.Timeouts.Request}
	a.http, a.creates = newHTTP(cfg), newHTTP(cfg)
	// Where a used connection breaks, package http sends a request with an
	// idempotency key once more. The control plane, still busy with the first,
	// would make two hosts.
	a.creates.Transport.(*http.Transport).DisableKeepAlives = true
	return a
}

func newHTTP(cfg Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = cfg.Proxy
	transport.DialContext = (&net.Dialer{Timeout: cfg.Timeouts.Connect}).DialContext
	transport.TLSHandshakeTimeout = cfg.Timeouts.Handshake
	return &http.Client{
		Transport: transport,
		// The token is not carried to wherever an answer points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// create returns when the host is ready, which takes tens of seconds and more:
// ctx is its only deadline.
func (a *api) create(ctx context.Context, key string, body createBody) (row, error) {
	var r row
	err := a.do(ctx, a.creates, http.MethodPost, "hosts", http.Header{"Idempotency-Key": {key}}, body, &r)
	return r, err
}

func (a *api) get(ctx context.Context, id string) (row, error) {
	var r row
	err := a.soon(ctx, http.MethodGet, "hosts/"+id, nil, &r)
	return r, err
}

func (a *api) list(ctx context.Context) ([]row, error) {
	var rows []row
	err := a.soon(ctx, http.MethodGet, "hosts", nil, &rows)
	return rows, err
}

func (a *api) renew(ctx context.Context, id string, until time.Time) (row, error) {
	var r row
	err := a.soon(ctx, http.MethodPost, "hosts/"+id+"/renew", map[string]stamp{"expires_at": {until}}, &r)
	return r, err
}

func (a *api) delete(ctx context.Context, id string) error {
	return a.soon(ctx, http.MethodDelete, "hosts/"+id, nil, nil)
}

// soon is do with a deadline of its own.
func (a *api) soon(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, a.request)
	defer cancel()
	return a.do(ctx, a.http, method, path, nil, body, into)
}

func (a *api) do(ctx context.Context, client *http.Client, method, path string, header http.Header, body, into any) error {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base.JoinPath(path).String(), content)
	if err != nil {
		return err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	call := method + " /" + path
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return &transportError{call: call, sent: connected.Load(), cause: bare(err)}
	}
	defer resp.Body.Close()
	a.setClock(resp, began)
	content = io.LimitReader(resp.Body, maxBody)
	text, err := io.ReadAll(content)
	if err != nil {
		return &transportError{call: call, sent: true, status: resp.StatusCode, cause: err}
	}
	switch {
	case resp.StatusCode/100 != 2:
		return a.statusError(call, resp, text)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return &bodyError{call: call, status: resp.StatusCode, cause: err}
	}
	return nil
}

// bare is err without the URL, which call says already.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// setClock keeps the difference between our clock and the control plane's:
// leases end by the latter. The header Date has whole seconds, so that less
// than two of them more or less are no news.
func (a *api) setClock(resp *http.Response, began time.Time) {
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return
	}
	ahead := date.Add(500 * time.Millisecond).Sub(began.Add(time.Since(began) / 2))
	if known := time.Duration(a.ahead.Load()); (ahead - known).Abs() >= 2*time.Second+time.Since(began)/2 {
		a.ahead.Store(int64(ahead))
	}
}

// now is the time by the control plane's clock.
func (a *api) now() time.Time { return a.theirs(time.Now()) }

// theirs is a time of our clock by the control plane's.
func (a *api) theirs(t time.Time) time.Time { return t.Add(time.Duration(a.ahead.Load())) }

// ours is a time of the control plane's clock by ours.
func (a *api) ours(t time.Time) time.Time { return t.Add(-time.Duration(a.ahead.Load())) }

// statusError reads one of the four shapes of an error's body.
func (a *api) statusError(call string, resp *http.Response, text []byte) error {
	e := &statusError{call: call, status: resp.StatusCode, retryAfter: retryAfter(resp.Header.Get("Retry-After"), a.now())}
	e.mediaType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var shape struct {
		Detail json.RawMessage `json:"detail"`
		Code   any             `json:"error_code"`
	}
	if json.Unmarshal(text, &shape) != nil || len(shape.Detail) == 0 {
		return e // a proxy's, or Internal Server Error in plain text
	}
	e.ours = true
	e.code, _ = shape.Code.(string)
	var problems []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(shape.Detail, &e.detail) != nil && json.Unmarshal(shape.Detail, &problems) == nil {
		var lines []string
		for _, p := range problems {
			lines = append(lines, fmt.Sprintf("%v: %s", p.Loc, p.Msg))
		}
		e.detail = strings.Join(lines, "; ")
	}
	e.shown = strings.ReplaceAll(e.detail, a.token, "[token]")
	return e
}
