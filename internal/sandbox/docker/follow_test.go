package docker

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

// newProxy is a line to the daemon.
func newProxy(t *testing.T) *sandboxtest.Proxy {
	t.Helper()
	network, address, _ := strings.Cut(daemonHost(), "://")
	return sandboxtest.NewProxy(t, network, address)
}

// 100 MB of everything, over connections that break, are these 100 MB.
func TestFollowIsWhole(t *testing.T) {
	t.Parallel()
	between := newProxy(t)
	p := open(t, func(c *Config) { c.Host = "tcp://" + between.Address })
	_, conn := create(t, p)
	const size = 100 << 20
	launch := sandbox.Launch{RunID: "run", Step: "step", N: 1}
	script := "head -c 104857600 /dev/urandom >data; cat data; seq 1 1000000 >&2; sha256sum <data >sum; exit 7"
	if _, err := conn.Start(t.Context(), launch, shell(script)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	var errs bytes.Buffer
	got, cuts := int64(0), 0
	began := time.Now()
	exit, err := conn.Follow(t.Context(), launch, sandbox.Offsets{}, func(s sandbox.Stream, offset int64, data []byte) error {
		if s == sandbox.Stderr {
			errs.Write(data)
			return nil
		}
		if offset != got {
			t.Errorf("at %d, want %d", offset, got)
		}
		sum.Write(data)
		if got += int64(len(data)); got > size/4 && cuts == 0 || got > size/2 && cuts == 1 {
			cuts++
			between.Cut()
		}
		return nil
	})
	if err != nil || exit.Code != 7 {
		t.Fatalf("%+v, %v", exit, err)
	}
	t.Logf("%d bytes and %d cuts took %s", got, cuts, time.Since(began))
	if got != size || cuts != 2 {
		t.Errorf("%d bytes, %d cuts", got, cuts)
	}
	_, want := sh(t, conn, "cat sum")
	if hex := strings.Fields(want)[0]; hex != hexSum(sum.Sum(nil)) {
		t.Errorf("other bytes: %s", hex)
	}
	if !strings.HasSuffix(errs.String(), "\n1000000\n") || errs.Len() != 6888896 {
		t.Errorf("%d bytes on stderr", errs.Len())
	}
	// Followers whose connection broke are gone.
	for began := time.Now(); ; {
		_, out := sh(t, conn, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx follow")
		if out == "0\n" {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("left: %s", out)
		}
	}
}

// A command whose connection breaks, or that cannot be started, has no status
// that somebody made up for it.
func TestCutWhileStarting(t *testing.T) {
	t.Parallel()
	between := newProxy(t)
	p := open(t, func(c *Config) { c.Host = "tcp://" + between.Address })
	host, _ := create(t, open(t))
	c := &container{provider: p, id: host.ID, patience: time.Second}
	_, err := c.Run(t.Context(), []string{"/none"}, sandbox.Stdio{})
	if f := faults.Of(err); f == nil || f.Kind != faults.SandboxUnavailable || f.Outcome != faults.NotStarted || !strings.Contains(err.Error(), "/none") {
		t.Errorf("what is not there: %v", err)
	}
	began := time.Now()
	for range 5 {
		if _, err := c.Run(t.Context(), []string{"true"}, sandbox.Stdio{}); err != nil {
			t.Fatal(err)
		}
	}
	whole, cuts := time.Since(began)/5, 0
	for range 50 {
		cut := time.AfterFunc(rand.N(whole), between.Cut)
		open, tell := io.Pipe()
		status, err := c.Run(t.Context(), []string{"true"}, sandbox.Stdio{In: open})
		tell.Close()
		cut.Stop()
		switch {
		case err == nil && status != 0, err != nil && !errors.Is(err, faults.SandboxUnavailable) && !errors.Is(err, faults.SandboxLost):
			t.Errorf("%d, %v", status, err)
		case err != nil:
			cuts++
		}
	}
	if cuts == 0 {
		t.Error("nothing was cut")
	}
}

func hexSum(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, x := range b {
		s.WriteByte(digits[x>>4])
		s.WriteByte(digits[x&15])
	}
	return s.String()
}
