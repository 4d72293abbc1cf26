package sshconn_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"executor/internal/sandbox/sshconn"
)

// server is an SSH server that does one thing wrong.
type server struct {
	keys    []ssh.Signer // host keys; nil: one
	refuse  bool         // every private key
	cutAuth bool         // the connection, when a key is offered
	silent  bool         // from the beginning
	mute    bool         // once connected
	banner  string       // instead of SSH
	ciphers []string
	reject  ssh.RejectionReason // of every session
	cutRun  bool                // the connection, once a command runs
	run     func(ssh.Channel)
}

// try dials a server and runs a command.
func (s server) try(t *testing.T, change func(*sshconn.Target)) error {
	return s.tryFor(t.Context(), t, change)
}

func (s server) tryFor(ctx context.Context, t *testing.T, change func(*sshconn.Target)) error {
	conn, err := s.dial(ctx, t, change)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Run(ctx, "command", nil, nil, nil)
}

func (s server) run2(t *testing.T, in io.Reader, out io.Writer) error {
	conn, err := s.dial(t.Context(), t, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.Run(t.Context(), "command", in, out, nil)
}

func (s server) dial(ctx context.Context, t *testing.T, change func(*sshconn.Target)) (*sshconn.Conn, error) {
	if s.keys == nil {
		s.keys = []ssh.Signer{newKey()}
	}
	target := sshconn.Target{Addrs: []string{s.listen(t)}, User: "user", Pins: pins(s.keys...), Signer: newKey()}
	if change != nil {
		change(&target)
	}
	return sshconn.Dial(ctx, target, sshconn.Limits{Connect: 2 * time.Second, Handshake: 3 * time.Second, KeepAlive: 500 * time.Millisecond})
}

func (s server) listen(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	ended := make(chan struct{})
	group.Go(func() {
		for {
			socket, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { s.serve(socket, ended) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); close(ended); group.Wait() })
	return l.Addr().String()
}

func (s server) serve(socket net.Conn, ended chan struct{}) {
	defer socket.Close()
	switch {
	case s.silent:
		<-ended
		return
	case s.banner != "":
		_, _ = socket.Write([]byte(s.banner))
		return
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		if s.cutAuth {
			_ = socket.Close()
		}
		if s.refuse {
			return nil, errors.New("no")
		}
		return nil, nil
	}}
	config.Ciphers = s.ciphers
	for _, key := range s.keys {
		config.AddHostKey(key)
	}
	_, channels, requests, err := ssh.NewServerConn(socket, config)
	if err != nil {
		return
	}
	if s.mute {
		<-ended
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if s.reject != 0 {
			_ = c.Reject(s.reject, "no")
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				_ = r.Reply(true, nil)
				if r.Type != "exec" {
					continue
				}
				if s.cutRun {
					_ = socket.Close()
					return
				}
				go func() {
					if s.run != nil {
						s.run(channel)
					}
					_ = channel.Close()
				}()
			}
		}()
	}
}

func exit(c ssh.Channel, status uint32) {
	_, _ = c.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, status))
}

func newKey() ssh.Signer {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	signer, _ := ssh.NewSignerFromKey(key)
	return signer
}

func newECDSAKey() ssh.Signer {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	signer, _ := ssh.NewSignerFromKey(key)
	return signer
}

func pins(keys ...ssh.Signer) sshconn.Pins {
	var p sshconn.Pins
	for _, key := range keys {
		p = append(p, key.PublicKey())
	}
	return p
}

func closedPort() string {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	defer l.Close()
	return l.Addr().String()
}
