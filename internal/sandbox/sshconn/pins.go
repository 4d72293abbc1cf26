package sshconn

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// ErrNoPins means that nobody said which host keys are the host's.
var ErrNoPins = errors.New("no host key is known for the host")

// Pins are the host keys of one host.
type Pins []ssh.PublicKey

// ParsePins reads what ssh-keyscan printed for one host. Every key in it is
// that host's, whatever address its line names: the host may be reached by
// another one. Lines that cannot be read are passed over, and so are marked
// ones: a certificate authority vouches for hosts, and is none.
func ParsePins(knownHosts []byte) Pins {
	var pins Pins
	for line := range bytes.Lines(knownHosts) {
		marker, _, key, _, _, err := ssh.ParseKnownHosts(line)
		if err == nil && marker == "" {
			pins = append(pins, key)
		}
	}
	return pins
}

// algorithms are those that the known keys can answer, best first. The
// handshake agrees on one before any key is seen, so that one of a key that we
// do not know must not be on offer.
func (p Pins) algorithms() []string {
	var known []string
	for _, algorithm := range []struct{ name, key string }{
		{ssh.KeyAlgoED25519, ssh.KeyAlgoED25519},
		{ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA256},
		{ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA384},
		{ssh.KeyAlgoECDSA521, ssh.KeyAlgoECDSA521},
		{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSA},
		{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA},
	} {
		if slices.ContainsFunc(p, func(k ssh.PublicKey) bool { return k.Type() == algorithm.key }) {
			known = append(known, algorithm.name)
		}
	}
	return known
}

func (p Pins) check(key ssh.PublicKey) error {
	changed := &knownhosts.KeyError{}
	for _, k := range p {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return nil
		}
		changed.Want = append(changed.Want, knownhosts.KnownKey{Key: k})
	}
	return changed
}
