package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Subject is a provider under test. Its hosts need a POSIX sh, coreutils,
// setsid and flock (busybox will do).
type Subject struct {
	// Open returns a provider of one installation: each call as another
	// executor would open it.
	Open func(t *testing.T) sandbox.Provider
	// SharedFiles: hosts can see each other's files. A provider that cannot
	// help it has to say so to its users.
	SharedFiles bool
	// Ceiling is Open with a ceiling of output, in bytes. nil: it has none
	// that can be set.
	Ceiling func(t *testing.T, bytes int64) sandbox.Provider
	// GivesBack: what was read long ago takes no space on the disk.
	GivesBack bool
}

const (
	canary   = "EXECUTOR_TEST_CANARY" // in our environment, and in no command's
	patience = 30 * time.Second       // for what takes milliseconds
	prompt   = 5 * time.Second        // and this is too long for what should be prompt
)

// Suite is what every provider has to pass.
func Suite(t *testing.T, subject Subject) {
	os.Setenv(canary, "leaked")
	for _, group := range []struct {
		name  string
		tests map[string]func(*testing.T, Subject)
	}{
		{"Hosts", hostTests},
		{"Exec", execTests},
		{"Files", fileTests},
		{"Processes", processTests},
		{"Stop", stopTests},
		{"Ceiling", ceilingTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for name, test := range group.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, subject)
				})
			}
		})
	}
}

// box is a host of one test, with a connection.
type box struct {
	*testing.T
	subject  Subject
	provider sandbox.Provider
	host     sandbox.Host
	conn     sandbox.Conn
}

func newKey() sandbox.Key { return sandbox.StepKey(rand.Text(), "step") }

// newBox makes a host that goes with the test.
func newBox(t *testing.T, subject Subject) *box {
	t.Helper()
	provider := subject.Open(t)
	host, err := provider.Create(soon(t), sandbox.HostSpec{Key: newKey(), RunID: t.Name()})
	if err != nil {
		t.Fatal("create:", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := provider.Delete(ctx, host.ID); err != nil {
			t.Error("delete:", err)
		}
		if listed(t, ctx, provider, host.ID) {
			t.Error("the host is still listed after its deletion")
		}
	})
	b := &box{T: t, subject: subject, provider: provider, host: host}
	b.dial(provider)
	if err := b.conn.Prepare(b.soon()); err != nil {
		t.Fatal("prepare:", err)
	}
	return b
}

// again is the same host as another executor sees it.
func (b *box) again() *box {
	b.Helper()
	other := *b
	other.provider = b.subject.Open(b.T)
	host, err := other.provider.Get(b.soon(), b.host.ID)
	if err != nil {
		b.Fatal("get:", err)
	}
	other.host = host
	other.dial(other.provider)
	return &other
}

func (b *box) dial(p sandbox.Provider) {
	b.Helper()
	conn, err := p.Dial(b.soon(), b.host)
	if err != nil {
		b.Fatal("dial:", err)
	}
	b.conn = conn
	b.Cleanup(func() { _ = conn.Close() })
}

func (b *box) soon() context.Context { return soon(b.T) }

// soon is a context for what should not take long.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func listed(t *testing.T, ctx context.Context, p sandbox.Provider, id string) bool {
	t.Helper()
	hosts, err := p.List(ctx)
	if err != nil {
		t.Error("list:", err)
	}
	for _, h := range hosts {
		if h.ID == id {
			return true
		}
	}
	return false
}

// result is what an attached command did.
type result struct {
	sandbox.Exit
	out, err string
}

func (b *box) exec(cmd sandbox.Command) result {
	b.Helper()
	var out, errs bytes.Buffer
	exit, err := b.conn.Exec(b.soon(), cmd, sandbox.Stdio{Out: &out, Err: &errs})
	if err != nil {
		b.Fatalf("exec %q: %v", cmd.Argv, err)
	}
	return result{exit, out.String(), errs.String()}
}

func shell(script string) sandbox.Command {
	return sandbox.Command{Argv: []string{"sh", "-c", script}}
}

// sh runs a script that has to succeed, and returns its output.
func (b *box) sh(script string) string {
	b.Helper()
	r := b.exec(shell(script))
	if !r.Success() {
		b.Fatalf("%s: %+v", script, r)
	}
	return r.out
}

// held makes a script and everything it starts hold a lock until it is dead.
const held = "exec 9>held; flock 9; "

// allDead checks that nothing is left of a tree that began with held.
func (b *box) allDead() {
	b.Helper()
	if r := b.exec(shell("flock -n held true")); !r.Success() {
		b.Errorf("something of the tree is alive: %+v", r)
	}
}

func (b *box) launch(n int) sandbox.Launch {
	return sandbox.Launch{RunID: b.Name(), Step: "step", N: n}
}

func (b *box) start(n int, cmd sandbox.Command) sandbox.Process {
	b.Helper()
	p, err := b.conn.Start(b.soon(), b.launch(n), cmd)
	if err != nil {
		b.Fatal("start:", err)
	}
	return p
}

func (b *box) stop(n int, grace time.Duration) {
	b.Helper()
	if err := b.conn.Stop(b.soon(), b.launch(n), grace); err != nil {
		b.Fatal("stop:", err)
	}
}

// following is a Follow in the background, and what it has brought.
type following struct {
	*box
	cancel context.CancelCauseFunc
	done   chan struct{}
	exit   sandbox.Exit
	err    error

	mu      sync.Mutex
	brought map[sandbox.Stream][]byte
	more    chan struct{} // closed and replaced when there is more
}

func (b *box) follow(n int, from sandbox.Offsets) *following {
	ctx, cancel := context.WithCancelCause(b.soon())
	f := &following{box: b, cancel: cancel, done: make(chan struct{}),
		brought: map[sandbox.Stream][]byte{}, more: make(chan struct{})}
	next := map[sandbox.Stream]int64{sandbox.Stdout: from.Stdout, sandbox.Stderr: from.Stderr}
	go func() {
		defer close(f.done)
		f.exit, f.err = b.conn.Follow(ctx, b.launch(n), from, func(s sandbox.Stream, offset int64, data []byte) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if offset != next[s] || len(data) == 0 {
				return errors.New("a gap, a repetition or nothing at all")
			}
			next[s] += int64(len(data))
			f.brought[s] = append(f.brought[s], data...)
			close(f.more)
			f.more = make(chan struct{})
			return nil
		})
	}()
	b.Cleanup(func() { cancel(nil); <-f.done })
	return f
}

func (f *following) stream(s sandbox.Stream) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.brought[s])
}

// until waits for text on stdout.
func (f *following) until(text string) {
	f.Helper()
	for {
		f.mu.Lock()
		more, found := f.more, strings.Contains(string(f.brought[sandbox.Stdout]), text)
		f.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-f.done:
			if !strings.Contains(f.stream(sandbox.Stdout), text) {
				f.Fatalf("no %q on stdout at the end: %+v, %v, stderr %q", text, f.exit, f.err, f.stream(sandbox.Stderr))
			}
		}
	}
}

// end waits for the end, which has to be one.
func (f *following) end() sandbox.Exit {
	f.Helper()
	<-f.done
	if f.err != nil {
		f.Fatal("follow:", f.err)
	}
	return f.exit
}

// is checks an error's kind.
func is(t *testing.T, err error, kind *faults.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %s", err, kind.Code())
	}
}

// promptly checks that f does not take its time.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > prompt {
		t.Errorf("%s took %s", what, took)
	}
}
