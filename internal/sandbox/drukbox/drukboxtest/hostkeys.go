package drukboxtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// makeHostKeys makes keys of two types.
func (m *machine) makeHostKeys() error {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return errors.Join(m.writeHostKey("ed25519", ed), m.writeHostKey("ecdsa", ec))
}

func (m *machine) writeHostKey(kind string, key crypto.Signer) error {
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return err
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return err
	}
	name := "ssh_host_" + kind + "_key"
	return errors.Join(m.write(name, string(pem.EncodeToMemory(block)), 0o600),
		m.write(name+".pub", string(ssh.MarshalAuthorizedKey(public)), 0o644))
}

// knownHosts is what ssh-keyscan prints of it at port.
func (m *machine) knownHosts(port int, kinds ...string) string {
	var lines strings.Builder
	for _, kind := range kinds {
		public, _ := os.ReadFile(filepath.Join(m.dir, "etc", "ssh_host_"+kind+"_key.pub"))
		fmt.Fprintf(&lines, "# 127.0.0.1:%d SSH-2.0-OpenSSH\n[127.0.0.1]:%[1]d %s", port, public)
	}
	return lines.String()
}
