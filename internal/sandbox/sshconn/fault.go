package sshconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"executor/internal/faults"
)

// Fault gives an error of this package a kind. Our own context goes first;
// what has a kind keeps it.
//
//	a host key that is not the known one        sandbox_denied, for good
//	refused while authenticating                sandbox_denied; the provider knows better:
//	                                            the host may be gone (RefusedKey)
//	any other dial, a connection that broke     sandbox_unavailable
//	no algorithm in common                      sandbox_unsupported
//	a channel that was not opened               sandbox_capacity, sandbox_denied, sandbox_unsupported
//	a session without an exit status            sandbox_lost
func Fault(ctx context.Context, op string, err error) error {
	if err == nil || faults.Classified(err) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	kind, outcome := classify(err)
	if kind == nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return faults.New(kind, op, err).With(func(f *faults.Fault) { f.Outcome = outcome })
}

func classify(err error) (kind *faults.Kind, outcome faults.Outcome) {
	var dial *DialError
	var key *knownhosts.KeyError
	var algorithm *ssh.AlgorithmNegotiationError
	var channel *ssh.OpenChannelError
	var missing *ssh.ExitMissingError
	var open *OpenError
	if errors.As(err, &dial) || errors.As(err, &open) {
		outcome = faults.NotStarted
	}
	switch {
	case errors.As(err, &key), errors.Is(err, ErrNoPins):
		return faults.SandboxDenied, outcome
	case errors.As(err, &algorithm):
		return faults.SandboxUnsupported, outcome
	case RefusedKey(err):
		return faults.SandboxDenied, outcome
	case dial != nil:
		return faults.SandboxUnavailable, outcome
	case errors.As(err, &channel):
		return byReason(channel.Reason), faults.NotStarted
	case errors.As(err, &missing):
		return faults.SandboxLost, faults.Unknown
	case Broken(err):
		return faults.SandboxUnavailable, outcome
	}
	return nil, ""
}

func byReason(reason ssh.RejectionReason) *faults.Kind {
	switch reason {
	case ssh.ResourceShortage:
		return faults.SandboxCapacity
	case ssh.Prohibited:
		return faults.SandboxDenied
	case ssh.UnknownChannelType:
		return faults.SandboxUnsupported
	}
	return faults.SandboxUnavailable
}

// RefusedKey reports that the host turned our private key down: the dial came
// as far as that, and was not cut there.
func RefusedKey(err error) bool {
	var dial *DialError
	return errors.As(err, &dial) && dial.Phase == Authenticating && !Broken(err)
}

// Broken reports that a connection was cut, or never answered.
func Broken(err error) bool {
	var netErr net.Error
	var errno syscall.Errno
	var broken *BrokenError
	return errors.As(err, &broken) || errors.As(err, &netErr) || errors.As(err, &errno) || errors.Is(err, errSilent) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}
