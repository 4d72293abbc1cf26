package sandbox

import (
	"errors"
	"io"
	"net"
	"net/textproto"
	"slices"
	"syscall"

	"executor/internal/faults"
)

// unanswered says which errors of one phase mean that no usable host could be
// had, because something did not answer.
type unanswered struct {
	kinds   []*faults.Kind
	network bool // errors of the network too that nobody classified
}

var (
	createUnanswered = unanswered{kinds: []*faults.Kind{faults.SandboxUnavailable, faults.SandboxTimeout}}
	lookUpUnanswered = unanswered{kinds: []*faults.Kind{faults.SandboxUnavailable}}
	setUpUnanswered  = unanswered{kinds: []*faults.Kind{faults.SandboxUnavailable, faults.SandboxTimeout, faults.SandboxLost}, network: true}
	// A conflict is a state change in progress here; the run waits for it
	// and does not end by it.
	deletionUnfinished = unanswered{kinds: []*faults.Kind{faults.SandboxUnavailable, faults.SandboxTimeout, faults.SandboxConflict}}
)

// asProvisioning is the one place where a fault is classified again, on
// purpose: a host that could not be had is one thing to an operator, whatever
// it was that did not answer. The original is the cause, and what it knew is
// kept. Our own cancellation and every other error come back unchanged.
func asProvisioning(op string, err error, which unanswered) error {
	f, ok := providersFault(err)
	if !ok {
		return err
	}
	raw := which.network && !faults.Classified(err) && isNetwork(err)
	if !raw && !slices.Contains(which.kinds, f.Kind) {
		return err
	}
	return &faults.Fault{
		Kind: faults.SandboxProvisioning, Op: op, Cause: err,
		Outcome: f.Outcome, RetryAfter: f.RetryAfter, ResetAt: f.ResetAt, Permanent: f.Permanent,
	}
}

// providersFault is what a provider's error says. An error of our own context
// says nothing about the provider, though its cause may be a fault: ok is
// false.
func providersFault(err error) (f *faults.Fault, ok bool) {
	var ours *interrupted
	if errors.As(err, &ours) {
		return nil, false
	}
	return faults.Of(err), true
}

// isNetwork reports whether err says that a peer cannot be reached, broke off
// or does not speak its protocol. Implementing net.Error is not evidence enough: every syscall.Errno and
// every *url.Error does, whatever it is about.
func isNetwork(err error) bool {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
			syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN:
			return true
		}
		return false
	}
	var op *net.OpError
	var dns *net.DNSError
	var protocol textproto.ProtocolError
	if errors.As(err, &op) || errors.As(err, &dns) || errors.As(err, &protocol) {
		return true
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
