package sandboxtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

const key = sandbox.Key("run1:build")

func first(n int) sandbox.Launch { return sandbox.Launch{RunID: "run1", Step: "build", N: n} }

func prepared(t *testing.T, fake *sandboxtest.Fake, key sandbox.Key) sandbox.Conn {
	t.Helper()
	host, err := fake.Create(t.Context(), sandbox.HostSpec{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := fake.Dial(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn
}

func follow(t *testing.T, conn sandbox.Conn, launch sandbox.Launch, from sandbox.Offsets) (string, string, sandbox.Exit, error) {
	t.Helper()
	out := map[sandbox.Stream]*strings.Builder{sandbox.Stdout: {}, sandbox.Stderr: {}}
	exit, err := conn.Follow(t.Context(), launch, from, func(stream sandbox.Stream, _ int64, data []byte) error {
		out[stream].Write(data)
		return nil
	})
	return out[sandbox.Stdout].String(), out[sandbox.Stderr].String(), exit, err
}

func TestScriptedProcesses(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake()
	fake.Script("build", sandboxtest.Proc{Stdout: "out\n", Stderr: "err\n", Exit: 3}, sandboxtest.Proc{Signal: "SIGKILL"}, sandboxtest.Proc{Lost: true})
	conn := prepared(t, fake, key)
	for n := 1; n <= 3; n++ {
		for range 2 { // the second start adopts
			if _, err := conn.Start(t.Context(), first(n), sandbox.Command{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, stderr, exit, err := follow(t, conn, first(1), sandbox.Offsets{Stdout: 1}); out != "ut\n" || stderr != "err\n" || exit.Code != 3 || err != nil {
		t.Error(out, stderr, exit, err)
	}
	if _, _, exit, err := follow(t, conn, first(2), sandbox.Offsets{}); exit != (sandbox.Exit{Code: 137, Signal: "SIGKILL"}) || err != nil {
		t.Error(exit, err)
	}
	if _, _, _, err := follow(t, conn, first(3), sandbox.Offsets{}); !errors.Is(err, faults.SandboxLost) {
		t.Error(err)
	}
	if got := fake.Started(); len(got) != 3 || len(fake.Misuse()) != 0 {
		t.Error(got, fake.Misuse())
	}
}

func TestHangingProcessEndsWhen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(*sandboxtest.Fake, sandbox.Conn)
		exit sandbox.Exit
		err  error
	}{
		"stopped":     {func(_ *sandboxtest.Fake, conn sandbox.Conn) { _ = conn.Stop(context.Background(), first(1), time.Hour) }, sandbox.Exit{Code: 143, Signal: "SIGTERM"}, nil},
		"host gone":   {func(fake *sandboxtest.Fake, _ sandbox.Conn) { fake.Vanish(key) }, sandbox.Exit{}, faults.SandboxNotFound},
		"conn closed": {func(_ *sandboxtest.Fake, conn sandbox.Conn) { _ = conn.Close() }, sandbox.Exit{}, faults.SandboxUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := sandboxtest.NewFake()
			fake.Script("build", sandboxtest.Proc{Stdout: "working", Hang: true})
			conn := prepared(t, fake, key)
			if _, err := conn.Start(t.Context(), first(1), sandbox.Command{}); err != nil {
				t.Fatal(err)
			}
			exit, err := conn.Follow(t.Context(), first(1), sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error {
				c.end(fake, conn)
				return nil
			})
			if exit != c.exit || !errors.Is(err, c.err) {
				t.Error(exit, err)
			}
		})
	}
}

func TestStrictness(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake()
	fake.Script("build", sandboxtest.Proc{Hang: true})
	conn := prepared(t, fake, key)
	_, _ = conn.Start(t.Context(), first(1), sandbox.Command{})
	_, _ = conn.Start(t.Context(), first(2), sandbox.Command{}) // while the first lives
	host := fake.Live()[0]
	fake.OnCreate(sandboxtest.Do(func(ctx context.Context) error { return fake.Delete(ctx, host.ID) }))
	if _, err := fake.Create(t.Context(), sandbox.HostSpec{Key: key}); !errors.Is(err, faults.SandboxConflict) {
		t.Error(err)
	}
	other, _ := fake.Create(t.Context(), sandbox.HostSpec{Key: "other"})
	unprepared, _ := fake.Dial(t.Context(), other)
	if _, err := unprepared.Start(t.Context(), first(3), sandbox.Command{}); !errors.Is(err, faults.SandboxInvalid) {
		t.Error(err)
	}
	if got := fake.Misuse(); len(got) != 3 {
		t.Error(got)
	}
}

func TestConcurrentCreatesShareAHost(t *testing.T) {
	t.Parallel()
	fake := sandboxtest.NewFake()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _ = fake.Create(context.Background(), sandbox.HostSpec{Key: key}) })
	}
	wg.Wait()
	if len(fake.Live()) != 1 || len(fake.Calls(sandboxtest.Create)) != 20 {
		t.Error(fake.Live())
	}
}
