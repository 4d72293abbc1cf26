package docker

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"executor/internal/sandbox"
)

// Whenever a creation is cancelled, its key still makes one host that works,
// and nothing stays beside it.
func TestCreateCancelled(t *testing.T) {
	t.Parallel()
	p := open(t)
	began := time.Now()
	create(t, p)
	whole := time.Since(began)
	cancelled := 0
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(whole))
		_, err := p.Create(ctx, sandbox.HostSpec{Key: "key", RunID: "run"})
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		if err != nil {
			cancelled++
		}
		cancel()
		host, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key", RunID: "run"})
		if err != nil {
			t.Fatal("again:", err)
		}
		conn, err := p.Dial(t.Context(), host)
		if err != nil {
			t.Fatal(err)
		}
		if exit, _ := sh(t, conn, "exit 7"); exit.Code != 7 {
			t.Errorf("%+v", exit)
		}
		if err := p.Delete(t.Context(), host.ID); err != nil {
			t.Fatal(err)
		}
		if hosts, err := p.List(t.Context()); err != nil || len(hosts) != 1 {
			t.Errorf("left: %+v, %v", hosts, err)
		}
	}
	t.Logf("%d were cancelled", cancelled)
	if cancelled == 0 {
		t.Error("none was cancelled")
	}
}

// Of many at once each one has its own status.
func TestManyExecs(t *testing.T) {
	t.Parallel()
	_, conn := create(t, open(t))
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			exit, err := conn.Exec(t.Context(), shell("sleep 1; exit 7"), sandbox.Stdio{})
			if err != nil || exit.Code != 7 {
				t.Errorf("%+v, %v", exit, err)
			}
		})
	}
	wg.Wait()
}

// A server that takes connections and says nothing costs what the caller gives.
func TestSilence(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var held []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
		for _, c := range held {
			c.Close()
		}
	})
	for _, scheme := range []string{"tcp://", "ssh://"} {
		p := open(t, func(c *Config) { c.Host = scheme + l.Addr().String() })
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := p.Create(ctx, sandbox.HostSpec{Key: "key"})
		if took := time.Since(began); err == nil || ctx.Err() == nil || took > 3*time.Second {
			t.Errorf("%s: %v after %s", scheme, err, took)
		}
	}
}
