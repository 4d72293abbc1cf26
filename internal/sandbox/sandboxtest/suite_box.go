package sandboxtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"executor/internal/sandbox"
)

// box is a host of one test, with a connection.
type box struct {
	*testing.T
	subject   Subject
	provider  sandbox.Provider
	host      sandbox.Host
	conn      sandbox.Conn
	lock      string // what trees hold; empty: held
	processes int    // of the host itself
}

// keyPrefix is of every key that the suite uses in this process.
var keyPrefix = rand.Text() + "."

func newKey() sandbox.Key { return sandbox.StepKey(keyPrefix+rand.Text(), "step") }

// newBox makes a host that goes with the test.
func newBox(t *testing.T, subject Subject) *box {
	t.Helper()
	return newBoxOf(t, subject, subject.Open(t))
}

// newBoxOf is newBox of a certain provider.
func newBoxOf(t *testing.T, subject Subject, provider sandbox.Provider) *box {
	t.Helper()
	host, err := provider.Create(soon(t), sandbox.HostSpec{Key: newKey(), RunID: t.Name()})
	if err != nil {
		t.Fatal("create:", err)
	}
	t.Cleanup(func() { removeSoon(t, provider, host) })
	b := &box{T: t, subject: subject, provider: provider, host: host}
	b.dial(provider)
	if err := b.conn.Prepare(b.soon()); err != nil {
		t.Fatal("prepare:", err)
	}
	return b
}

// settled is a box whose own processes are known: what comes with the first
// command is there.
func (b *box) settled() *box {
	b.Helper()
	b.sh("true")
	b.processes = b.count()
	return b
}

// count is how many processes there are in the host.
func (b *box) count() int {
	if b.subject.Processes == nil {
		return 0
	}
	return b.subject.Processes(b.T, b.provider, b.host)
}

// asBefore checks that a settled box has no more processes than its own: helpers
// are gone, and whatever they ran.
func (b *box) asBefore() {
	b.Helper()
	b.noMoreThan(b.processes)
}

func (b *box) noMoreThan(processes int) {
	b.Helper()
	var n int
	if !eventually(func() bool { n = b.count(); return n <= processes }) {
		b.Errorf("there are %d processes in the host, and should be %d", n, processes)
	}
}

// removeSoon is remove when the test is over.
func removeSoon(t *testing.T, provider sandbox.Provider, host sandbox.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	remove(t, ctx, provider, host)
}

// remove deletes a host, and all that is kept for it.
func remove(t *testing.T, ctx context.Context, provider sandbox.Provider, host sandbox.Host) {
	t.Helper()
	if err := provider.Delete(ctx, host.ID); err != nil {
		t.Error("delete:", err)
	}
	if listed(t, ctx, provider, host.ID) {
		t.Error("the host is still listed after its deletion")
	}
	if remover, ok := provider.(sandbox.KeyRemover); ok {
		if err := remover.RemoveKey(ctx, host); err != nil {
			t.Error("remove key:", err)
		}
	}
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
const held = "exec 9>held; flock -s 9; "

// holding is held, with the lock of the box.
func (b *box) holding(script string) sandbox.Command {
	return shell(strings.ReplaceAll(held, "held", b.lockName()) + script)
}

func (b *box) lockName() string { return cmp.Or(b.lock, "held") }

// free reports whether nothing is left of a tree that began with held.
func (b *box) free() bool {
	b.Helper()
	return b.exec(shell("flock -n " + b.lockName() + " true")).Success()
}

// allDead checks it.
func (b *box) allDead() {
	b.Helper()
	if !b.free() {
		b.Error("something of the tree is alive")
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
