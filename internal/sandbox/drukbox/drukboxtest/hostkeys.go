package drukboxtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// makeHostKeys makes keys of two types, and returns the public ones.
func (m *machine) makeHostKeys() (public map[string][]byte, err error) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	public = map[string][]byte{}
	for kind, key := range map[string]crypto.Signer{"ed25519": ed, "ecdsa": ec} {
		if public[kind], err = m.writeHostKey(kind, key); err != nil {
			return nil, err
		}
	}
	return public, nil
}

func (m *machine) writeHostKey(kind string, key crypto.Signer) (line []byte, err error) {
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return ssh.MarshalAuthorizedKey(public), m.write("ssh_host_"+kind+"_key", string(pem.EncodeToMemory(block)), 0o600)
}

// knownHosts is what ssh-keyscan printed of it at port when it was made.
func (m *machine) knownHosts(port int, kinds ...string) string {
	var lines strings.Builder
	for _, kind := range kinds {
		fmt.Fprintf(&lines, "# 127.0.0.1:%d SSH-2.0-OpenSSH\n[127.0.0.1]:%[1]d %s", port, m.hostKeys[kind])
	}
	return lines.String()
}
