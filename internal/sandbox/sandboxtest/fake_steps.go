package sandboxtest

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A step of a script is an error, and says what one call does:
//
//	nil           it succeeds
//	an error      it fails with it and has no effect
//	Lost(err)     it has its effect, and then the answer is err
//	Do(f)         f runs first; the call succeeds unless f fails
//	*Gate         it waits until the gate is opened or its context is done
type step struct{ error }

func (s step) run(ctx context.Context, effect func() error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch s := s.error.(type) {
	case nil:
		return effect()
	case lost:
		if err := effect(); err != nil {
			return err
		}
		return s.error
	case do:
		if err := s(ctx); err != nil {
			return err
		}
		return effect()
	case *Gate:
		if err := s.pass(ctx); err != nil {
			return err
		}
		return effect()
	default:
		return s
	}
}

type lost struct{ error }

// Lost is the step of a call that happens though its answer is err: a host is
// there, a process runs, and the caller does not know.
func Lost(err error) error { return lost{err} }

type do func(context.Context) error

func (do) Error() string { return "a step that runs a function" }

// Do is the step of a call that runs f before it succeeds, or fails as f
// does. f may look at the world in the middle of the call, or panic.
func Do(f func(ctx context.Context) error) error { return do(f) }

// Gate is the step of a call that waits.
type Gate struct {
	Entered chan struct{} // closed when the first call has arrived

	arrive, release sync.Once
	opened          chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{Entered: make(chan struct{}), opened: make(chan struct{})} }

// Open lets through whoever waits and whoever comes.
func (g *Gate) Open() { g.release.Do(func() { close(g.opened) }) }

func (g *Gate) Error() string { return "a step that waits" }

func (g *Gate) pass(ctx context.Context) error {
	g.arrive.Do(func() { close(g.Entered) })
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unreachable returns one genuine error of every way in which a peer cannot
// be reached or breaks off, as the standard library raises it, by name.
func Unreachable(t testing.TB) map[string]error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	read := func(before func(client, server net.Conn)) error {
		client, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		before(client, server)
		_, err = client.Read(make([]byte, 1))
		return err
	}
	all := map[string]error{
		"reset": read(func(_, server net.Conn) {
			_ = server.(*net.TCPConn).SetLinger(0) // closing sends RST and not FIN
			_ = server.Close()
		}),
		"timeout": read(func(client, _ net.Conn) { _ = client.SetReadDeadline(time.Now().Add(-time.Second)) }),
		"eof":     read(func(_, server net.Conn) { _ = server.Close() }),
	}
	_ = listener.Close()
	// Somebody else may get the port that we let go of.
	for range 10 {
		conn, err := net.Dial("tcp", address)
		if all["refused"] = err; err != nil {
			break
		}
		conn.Close()
		if next, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			address = next.Addr().String()
			next.Close()
		}
	}
	for name, answer := range map[string]string{"protocol cut off": "HTTP/1.1 200 OK", "protocol broken": "HTTP/1.1 200 OK\r\nzzz\r\n\r\n"} {
		_, all[name] = http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
	}
	for name, err := range all {
		if err == nil {
			t.Fatalf("no error for %s", name)
		}
	}
	return all
}
