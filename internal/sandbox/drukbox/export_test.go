package drukbox

import "context"

// StatusFault is what Fault makes of an answer to a request about a host.
func StatusFault(ctx context.Context, status int, code, detail string, ours bool) error {
	return fault(ctx, "op", &statusError{call: "GET /hosts", status: status, code: code, detail: detail, shown: detail, ours: ours})
}

// ClockAhead is how far the control plane's clock is said to be ahead.
func (p *Provider) ClockAhead() int64 { return p.api.ahead.Load() }
