package sandboxtest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

var hostTests = map[string]func(*testing.T, Subject){
	"one key is one host": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("echo mine >file")
		again, err := s.Open(t).Create(b.soon(), sandbox.HostSpec{Key: b.host.Key, RunID: t.Name()})
		if err != nil || again != b.host {
			t.Fatalf("created again: %+v, %v, want %+v", again, err, b.host)
		}
		if got := b.again().sh("cat file"); got != "mine\n" {
			t.Errorf("the adopted host holds %q", got)
		}
	},
	"one key is one host, at the same time": func(t *testing.T, s Subject) {
		spec := sandbox.HostSpec{Key: newKey(), RunID: t.Name()}
		hosts := make([]sandbox.Host, 8)
		var wg sync.WaitGroup
		for i := range hosts {
			provider := s.Open(t)
			wg.Go(func() {
				host, err := provider.Create(soon(t), spec)
				if err != nil {
					t.Error("create:", err)
				}
				hosts[i] = host
			})
		}
		wg.Wait()
		for _, h := range hosts {
			if h != hosts[0] || h.ID == "" || h.Key != spec.Key {
				t.Errorf("got %+v and %+v", h, hosts[0])
			}
		}
		remove(t, soon(t), s.Open(t), hosts[0])
	},
	"keys are hosts of their own": func(t *testing.T, s Subject) {
		a, b := newBox(t, s), newBox(t, s)
		if a.host.ID == b.host.ID {
			t.Fatal("two keys, one host")
		}
		a.sh("echo secret >file; echo secret >$HOME/file; echo secret >$TMPDIR/file")
		for _, dir := range strings.Fields(a.sh("pwd; echo $HOME")) {
			if r := b.exec(shell("cat file $HOME/file $TMPDIR/file " + dir + "/file")); r.out != "" && !s.SharedFiles {
				t.Errorf("one host reads the other's files: %q", r.out)
			}
		}
		if out := b.sh("ls -A; ls -A $HOME"); out != "" {
			t.Errorf("a new host is not empty: %q", out)
		}
	},
	"found and listed until deleted": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		got, err := b.provider.Get(b.soon(), b.host.ID)
		if err != nil || got != b.host || got.Provider != b.provider.Name() {
			t.Errorf("got %+v, %v, want %+v", got, err, b.host)
		}
		if !listed(t, b.soon(), b.provider, b.host.ID) {
			t.Error("a live host is not listed")
		}
		for range 2 {
			if err := b.provider.Delete(b.soon(), b.host.ID); err != nil {
				t.Fatal("delete:", err)
			}
		}
		_, err = b.provider.Get(b.soon(), b.host.ID)
		is(t, err, faults.SandboxNotFound)
		_, err = b.provider.Dial(b.soon(), b.host)
		if err == nil { // a provider may find out later
			_, err = b.conn.Exec(b.soon(), shell("true"), sandbox.Stdio{})
		}
		is(t, err, faults.SandboxNotFound)
	},
	"a deleted key starts anew": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkdir -p dir/sub; echo old >dir/sub/file; chmod -R a-w dir")
		if err := b.provider.Delete(b.soon(), b.host.ID); err != nil {
			t.Fatal("delete:", err)
		}
		host, err := b.provider.Create(b.soon(), sandbox.HostSpec{Key: b.host.Key, RunID: t.Name()})
		if err != nil {
			t.Fatal("create:", err)
		}
		b.host = host
		t.Cleanup(func() { remove(t, context.Background(), b.provider, host) })
		b.dial(b.provider)
		if err := b.conn.Prepare(b.soon()); err != nil {
			t.Fatal("prepare:", err)
		}
		if out := b.sh("ls"); out != "" {
			t.Errorf("the new host holds %q", out)
		}
	},
	"unknown hosts": func(t *testing.T, s Subject) {
		p := s.Open(t)
		for _, id := range []string{"nothing", "", "../..", "/etc", "00000000000000000000000000000000"} {
			_, err := p.Get(soon(t), id)
			is(t, err, faults.SandboxNotFound)
			if err := p.Delete(soon(t), id); err != nil {
				t.Errorf("delete %q: %v", id, err)
			}
		}
	},
	"leases": func(t *testing.T, s Subject) {
		renewer, ok := s.Open(t).(sandbox.Renewer)
		if !ok {
			t.Skip("its leases cannot be put off")
		}
		b := newBox(t, s)
		before := b.host.ExpiresAt
		if !before.After(time.Now()) {
			t.Fatalf("a new host's lease ends at %s", before)
		}
		until := before.Add(time.Hour)
		for i, at := range []time.Time{until, time.Now().Add(time.Minute)} { // later, and no sooner
			got, err := renewer.Renew(b.soon(), b.host, at)
			if err != nil || got.ID != b.host.ID || got.Key != b.host.Key || got.ExpiresAt.Sub(until).Abs() > time.Minute {
				t.Errorf("renewal %d to %s: %+v, %v", i, at, got, err)
			}
		}
		got, err := b.provider.Get(b.soon(), b.host.ID)
		if err != nil || got.ExpiresAt.Sub(until).Abs() > time.Minute {
			t.Errorf("then it is %+v, %v", got, err)
		}
		done, cancel := context.WithCancelCause(t.Context())
		cancel(errEnough)
		if _, err := renewer.Renew(done, b.host, until); !errors.Is(err, errEnough) || faults.Classified(err) {
			t.Errorf("cancelled: %v", err)
		}
		if err := b.provider.Delete(b.soon(), b.host.ID); err != nil {
			t.Fatal("delete:", err)
		}
		_, err = renewer.Renew(b.soon(), b.host, until)
		is(t, err, faults.SandboxNotFound)
	},
	"deleted under a running process": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell("trap '' TERM; setsid sleep 300 & echo ready; wait"))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		if err := b.provider.Delete(b.soon(), b.host.ID); err != nil {
			t.Fatal("delete:", err)
		}
		promptly(t, "the end of Follow", func() { <-f.done })
		is(t, f.err, faults.SandboxNotFound)

		_, err := b.conn.Start(b.soon(), b.launch(2), shell("true"))
		is(t, err, faults.SandboxNotFound)
		_, err = b.conn.Exec(b.soon(), shell("true"), sandbox.Stdio{})
		is(t, err, faults.SandboxNotFound)
		is(t, b.conn.Upload(b.soon(), "file", 0o600, strings.NewReader("")), faults.SandboxNotFound)
		_, err = b.conn.Download(b.soon(), "file")
		is(t, err, faults.SandboxNotFound)
		if err := b.conn.Stop(b.soon(), b.launch(1), 0); err != nil && !errors.Is(err, faults.SandboxNotFound) {
			t.Error("stop:", err)
		}
	},
	"deleted under everything else": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		running, deleted := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			var once sync.Once
			exit, err := b.conn.Exec(soon(t), shell(stubborn["in another session"]), sandbox.Stdio{
				Out: writerFunc(func(p []byte) (int, error) { once.Do(func() { close(running) }); return len(p), nil }),
			})
			if err != nil {
				isGone(t, err)
			} else if exit.Success() {
				t.Errorf("exec: %+v", exit)
			}
		})
		wg.Go(func() {
			err := b.conn.Upload(soon(t), "file", 0o600, readerFunc(func([]byte) (int, error) { <-deleted; return 0, io.EOF }))
			isGone(t, err)
		})
		<-running
		other := s.Open(t) // another executor does it
		if err := other.Delete(b.soon(), b.host.ID); err != nil {
			t.Error("delete:", err)
		}
		close(deleted)
		promptly(t, "the end of it all", wg.Wait)
	},
	"a context that is done": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errEnough)
		b.start(1, shell("echo ready; sleep 300"))
		b.follow(1, sandbox.Offsets{}).until("ready")
		ops := map[string]func() error{
			"create": func() error {
				_, err := b.provider.Create(ctx, sandbox.HostSpec{Key: b.host.Key, RunID: t.Name()})
				return err
			},
			"get":      func() error { _, err := b.provider.Get(ctx, b.host.ID); return err },
			"list":     func() error { _, err := b.provider.List(ctx); return err },
			"delete":   func() error { return b.provider.Delete(ctx, b.host.ID) },
			"dial":     func() error { conn, err := b.provider.Dial(ctx, b.host); return closedConn(conn, err) },
			"prepare":  func() error { return b.conn.Prepare(ctx) },
			"exec":     func() error { _, err := b.conn.Exec(ctx, shell("true"), sandbox.Stdio{}); return err },
			"upload":   func() error { return b.conn.Upload(ctx, "file", 0o600, strings.NewReader("x")) },
			"download": func() error { _, err := b.conn.Download(ctx, "none"); return err },
			"start":    func() error { _, err := b.conn.Start(ctx, b.launch(2), shell("echo x >file")); return err },
			"follow":   func() error { _, err := b.conn.Follow(ctx, b.launch(1), sandbox.Offsets{}, discard); return err },
			"stop":     func() error { return b.conn.Stop(ctx, b.launch(1), patience) },
		}
		for name, op := range ops {
			promptly(t, name, func() {
				if err := op(); !errors.Is(err, errEnough) || faults.Classified(err) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		if out := b.sh("ls"); out != "" {
			t.Errorf("and left %q", out)
		}
	},
}

// isGone checks the error of an operation whose host was deleted under it: a
// host on its way out may look like one that does not answer.
func isGone(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, faults.SandboxNotFound) && !errors.Is(err, faults.SandboxUnavailable) && !errors.Is(err, faults.SandboxLost) {
		t.Errorf("got %v", err)
	}
}

func closedConn(conn sandbox.Conn, err error) error {
	if err == nil {
		_ = conn.Close()
	}
	return err
}
