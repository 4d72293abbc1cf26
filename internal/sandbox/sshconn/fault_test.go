package sshconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"executor/internal/faults"
	"executor/internal/sandbox/sshconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every row with the error that a real server brought about.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		server  server
		change  func(*sshconn.Target)
		typed   any // what the error has to hold
		kind    *faults.Kind
		outcome faults.Outcome
	}{
		{name: "another host key", change: func(t *sshconn.Target) { t.Pins = pins(newKey()) },
			typed: new(*knownhosts.KeyError), kind: faults.SandboxDenied, outcome: faults.NotStarted},
		{name: "no known host key", change: func(t *sshconn.Target) { t.Pins = nil },
			typed: new(*sshconn.DialError), kind: faults.SandboxDenied, outcome: faults.NotStarted},
		{name: "the key is refused", server: server{refuse: true},
			typed: new(*sshconn.DialError), kind: faults.SandboxDenied, outcome: faults.NotStarted},
		{name: "cut while authenticating", server: server{cutAuth: true},
			typed: new(*sshconn.DialError), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "nobody listens", change: func(t *sshconn.Target) { t.Addrs = []string{closedPort()} },
			typed: new(syscall.Errno), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "no address", change: func(t *sshconn.Target) { t.Addrs = nil },
			typed: new(*sshconn.DialError), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "silent", server: server{silent: true},
			typed: new(net.Error), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "something else answers", server: server{banner: "HTTP/1.1 400 Bad Request\r\n\r\n"},
			typed: new(*sshconn.DialError), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "no cipher in common", server: server{ciphers: []string{"aes128-cbc"}},
			typed: new(*ssh.AlgorithmNegotiationError), kind: faults.SandboxUnsupported, outcome: faults.NotStarted},
		{name: "no more sessions", server: server{reject: ssh.ResourceShortage},
			typed: new(*ssh.OpenChannelError), kind: faults.SandboxCapacity, outcome: faults.NotStarted},
		{name: "sessions are forbidden", server: server{reject: ssh.Prohibited},
			typed: new(*ssh.OpenChannelError), kind: faults.SandboxDenied, outcome: faults.NotStarted},
		{name: "no sessions at all", server: server{reject: ssh.UnknownChannelType},
			typed: new(*ssh.OpenChannelError), kind: faults.SandboxUnsupported, outcome: faults.NotStarted},
		{name: "sessions fail", server: server{reject: ssh.ConnectionFailed},
			typed: new(*ssh.OpenChannelError), kind: faults.SandboxUnavailable, outcome: faults.NotStarted},
		{name: "no exit status", server: server{run: func(ssh.Channel) {}},
			typed: new(*ssh.ExitMissingError), kind: faults.SandboxLost, outcome: faults.Unknown},
		{name: "cut while running", server: server{cutRun: true},
			typed: new(*sshconn.BrokenError), kind: faults.SandboxUnavailable, outcome: faults.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.server.try(t, c.change)
			if err == nil {
				t.Fatal("it worked")
			}
			if !errors.As(err, c.typed) {
				t.Errorf("%#v holds no %T", err, c.typed)
			}
			f := faults.Of(sshconn.Fault(t.Context(), "op", err))
			outcome := f.Outcome
			if outcome == "" {
				outcome = faults.Unknown
			}
			if f.Kind != c.kind || outcome != c.outcome {
				t.Errorf("%v, outcome %s, want %s, %s", f, outcome, c.kind.Code(), c.outcome)
			}
		})
	}
}

func TestAnExitIsNoFault(t *testing.T) {
	t.Parallel()
	status := server{run: func(c ssh.Channel) { exit(c, 7) }}
	var exited *ssh.ExitError
	if err := status.try(t, nil); !errors.As(err, &exited) || exited.ExitStatus() != 7 {
		t.Errorf("got %v", err)
	}
	signal := server{run: func(c ssh.Channel) {
		_, _ = c.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal    string
			Core      bool
			Msg, Lang string
		}{"KILL", false, "", ""}))
	}}
	if err := signal.try(t, nil); !errors.As(err, &exited) || exited.Signal() != "KILL" || exited.ExitStatus() != 137 {
		t.Errorf("got %v", err)
	}
}

func TestOurOwnContextIsNoFault(t *testing.T) {
	t.Parallel()
	enough, held := errors.New("enough"), make(chan struct{})
	t.Cleanup(func() { close(held) })
	for name, s := range map[string]server{"dial": {silent: true}, "run": {run: func(ssh.Channel) { <-held }}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
			began := time.Now()
			err := s.tryFor(ctx, t, nil)
			if err = sshconn.Fault(ctx, "op", err); !errors.Is(err, enough) || faults.Classified(err) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func FuzzFault(f *testing.F) {
	for which := range uint8(10) {
		f.Add(which, uint32(which), "x")
	}
	f.Fuzz(func(t *testing.T, which uint8, reason uint32, text string) {
		phases := []sshconn.Phase{sshconn.Connecting, sshconn.Handshaking, sshconn.CheckingKey, sshconn.Authenticating}
		causes := []error{
			&ssh.OpenChannelError{Reason: ssh.RejectionReason(reason), Message: text},
			&ssh.ExitMissingError{},
			syscall.Errno(1 + reason%200),
			fmt.Errorf("%s: %w", text, io.ErrUnexpectedEOF),
			&knownhosts.KeyError{},
			&ssh.AlgorithmNegotiationError{},
			&net.OpError{Op: text, Err: errors.New(text)},
			sshconn.ErrNoPins,
		}
		err := causes[int(which)%len(causes)]
		switch reason % 4 {
		case 1: // a dial may fail of whatever
			err = sshconn.DialFailed(phases[int(reason/4)%len(phases)], errors.Join(errors.New(text), err))
		case 2:
			err = sshconn.DialFailed(phases[int(reason/4)%len(phases)], errors.New(text))
		case 3:
			err = sshconn.BrokenBy(errors.New(text))
		}
		got := sshconn.Fault(t.Context(), "op", err)
		f := faults.Of(got)
		if !errors.Is(got, faults.Sandbox) || !errors.Is(got, err) {
			t.Errorf("%v is %v", err, got)
		}
		var dial *sshconn.DialError
		if errors.As(err, &dial) && f.Outcome != faults.NotStarted {
			t.Errorf("%v: outcome %q", err, f.Outcome)
		}
	})
}

// Which key type is agreed on is ours to decide, by what we know.
func TestPins(t *testing.T) {
	t.Parallel()
	ed, ec := newKey(), newECDSAKey()
	line := func(s ssh.Signer) string { return "[10.0.0.1]:22 " + string(ssh.MarshalAuthorizedKey(s.PublicKey())) }
	for name, known := range map[string]string{
		"only ed25519":     line(ed),
		"only ecdsa":       line(ec),
		"both":             line(ec) + line(ed),
		"one of two":       line(newKey()) + line(ed),
		"among odd lines":  "# a comment\n\nnonsense\n" + line(ed) + "@cert-authority * " + line(ec),
		"a hashed address": "|1|JfKTdBh7rNbXkVAQCRp4OQoPfmI=|USECr3SWf1JUPsms5AqfD5QfxkM= " + strings.SplitN(line(ed), " ", 2)[1],
	} {
		t.Run(name, func(t *testing.T) {
			s := server{keys: []ssh.Signer{ec, ed}, run: func(c ssh.Channel) { exit(c, 0) }}
			if err := s.try(t, func(t *sshconn.Target) { t.Pins = sshconn.ParsePins([]byte(known)) }); err != nil {
				t.Error(err)
			}
		})
	}
	var changed *knownhosts.KeyError
	s := server{keys: []ssh.Signer{ed}}
	if err := s.try(t, func(t *sshconn.Target) { t.Pins = sshconn.ParsePins([]byte(line(newKey()))) }); !errors.As(err, &changed) || len(changed.Want) != 1 {
		t.Errorf("a changed key: %v", err)
	}
	authority := "@cert-authority * " + string(ssh.MarshalAuthorizedKey(ed.PublicKey()))
	if err := s.try(t, func(t *sshconn.Target) { t.Pins = sshconn.ParsePins([]byte(authority)) }); !errors.Is(err, sshconn.ErrNoPins) {
		t.Errorf("an authority's key: %v", err)
	}
}

// A peer that stops reading and writing is noticed by keepalives.
func TestASilentPeerIsNoticed(t *testing.T) {
	t.Parallel()
	s := server{mute: true}
	began := time.Now()
	err := s.try(t, nil)
	if f := faults.Of(sshconn.Fault(t.Context(), "op", err)); f.Kind != faults.SandboxUnavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestErrorsOfOurOwnReadersAndWriters(t *testing.T) {
	t.Parallel()
	ours := errors.New("ours")
	echo := server{run: func(c ssh.Channel) { _, _ = io.Copy(c, c); exit(c, 0) }}
	if err := echo.run2(t, strings.NewReader("x"), failing{ours}); err != ours {
		t.Errorf("a writer's: %v", err)
	}
	if err := echo.run2(t, failing{ours}, io.Discard); err != ours {
		t.Errorf("a reader's: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Read([]byte) (int, error)  { return 0, f.err }
