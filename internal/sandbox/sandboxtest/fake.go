package sandboxtest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"executor/internal/sandbox"
)

// Fake is a provider whose hosts live in memory and whose every call can be
// scripted. It records the calls, and is strict: what a real provider would
// answer with a conflict, and what nobody may ever do, is kept in Misuse.
//
//	fake := sandboxtest.NewFake()
//	fake.OnCreate(faults.New(faults.SandboxUnavailable, "create", nil), nil)
//	fake.Script("build", sandboxtest.Proc{Stdout: "hi\n"}, sandboxtest.Proc{Exit: 2})
//
// Its methods may be called concurrently. It starts no goroutines.
type Fake struct {
	// Machine and the others describe the hosts it makes. Set before the first use.
	Machine  string
	Lease    time.Duration // the usual one of a host; 0: hosts live for ever
	MaxLease time.Duration // from a host's creation on, whatever is renewed; 0: no such limit

	name string

	mu       sync.Mutex
	steps    map[Op][]error
	scripts  map[string]*script
	calls    []Call
	starts   []sandbox.Launch
	misuse   []string
	hosts    map[string]*host       // by id; deleted ones are not there
	material map[sandbox.Key]string // key material: the id of the host it is for
	creating map[sandbox.Key]int    // calls of Create under way
	made     int
}

var (
	_ sandbox.Provider   = (*Fake)(nil)
	_ sandbox.KeyRemover = (*Fake)(nil)
	_ sandbox.Renewer    = (*Fake)(nil)
)

// NewFake returns a fake with the name "fake".
func NewFake() *Fake { return NewNamedFake("fake") }

// NewNamedFake returns a fake under another name, for tests of several.
func NewNamedFake(name string) *Fake {
	return &Fake{
		name: name, steps: map[Op][]error{}, scripts: map[string]*script{},
		hosts: map[string]*host{}, material: map[sandbox.Key]string{}, creating: map[sandbox.Key]int{},
	}
}

// Op is an operation of a provider or of a connection.
type Op string

const (
	Create    Op = "create"
	Get       Op = "get"
	Renew     Op = "renew"
	Delete    Op = "delete"
	List      Op = "list"
	Dial      Op = "dial"
	RemoveKey Op = "remove key"
	Prepare   Op = "prepare"
	Exec      Op = "exec"
	Upload    Op = "upload"
	Download  Op = "download"
	Start     Op = "start"
	Follow    Op = "follow"
	Stop      Op = "stop"
	Close     Op = "close"
)

// Call is one call of an operation. Fields that the operation has no use for
// are zero.
type Call struct {
	Op       Op
	Key      sandbox.Key
	HostID   string
	Launch   sandbox.Launch
	Command  sandbox.Command
	Deadline bool // its context had one
}

// On scripts the next calls of op, one step a call; see steps.go for what a
// step can be. Calls beyond the script succeed. Repeated, it appends.
func (f *Fake) On(op Op, steps ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps[op] = append(f.steps[op], steps...)
}

func (f *Fake) OnCreate(steps ...error)  { f.On(Create, steps...) }
func (f *Fake) OnGet(steps ...error)     { f.On(Get, steps...) }
func (f *Fake) OnRenew(steps ...error)   { f.On(Renew, steps...) }
func (f *Fake) OnDelete(steps ...error)  { f.On(Delete, steps...) }
func (f *Fake) OnDial(steps ...error)    { f.On(Dial, steps...) }
func (f *Fake) OnPrepare(steps ...error) { f.On(Prepare, steps...) }
func (f *Fake) OnStart(steps ...error)   { f.On(Start, steps...) }
func (f *Fake) OnFollow(steps ...error)  { f.On(Follow, steps...) }

// Calls returns the calls so far in the order they came in, of all operations
// or of the given ones.
func (f *Fake) Calls(ops ...Op) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []Call
	for _, call := range f.calls {
		if len(ops) == 0 || slices.Contains(ops, call.Op) {
			calls = append(calls, call)
		}
	}
	return calls
}

// Ops returns the operations called so far, in order.
func (f *Fake) Ops() []Op {
	var ops []Op
	for _, call := range f.Calls() {
		ops = append(ops, call.Op)
	}
	return ops
}

// Live returns the hosts that exist, oldest first.
func (f *Fake) Live() []sandbox.Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live()
}

func (f *Fake) live() []sandbox.Host {
	f.lapse()
	var live []sandbox.Host
	for _, h := range slices.SortedFunc(maps.Values(f.hosts), func(a, b *host) int { return cmp.Compare(a.serial, b.serial) }) {
		live = append(live, h.Host)
	}
	return live
}

// Material returns the keys whose key material is still there.
func (f *Fake) Material() []sandbox.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.material))
}

// Misuse says what was done that must never be done, such as two processes of
// one step alive at the same time. Empty in a correct program.
func (f *Fake) Misuse() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.misuse)
}

// Vanish takes the host of key away as a provider does that lost it.
func (f *Fake) Vanish(key sandbox.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.byKey(key); h != nil {
		f.remove(h)
	}
}

// EndLease makes the lease of key's host end so soon, and no renewal puts that
// off.
func (f *Fake) EndLease(key sandbox.Key, in time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.byKey(key); h != nil {
		h.deadline = time.Now().Add(in)
		h.ExpiresAt = h.deadline
	}
}

// perform records a call, takes its step, and does it. effect runs under the
// mutex.
func (f *Fake) perform(ctx context.Context, call Call, effect func() error) error {
	return f.next(ctx, call).run(ctx, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lapse()
		return effect()
	})
}

func (f *Fake) next(ctx context.Context, call Call) step {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, call.Deadline = ctx.Deadline()
	f.calls = append(f.calls, call)
	queue := f.steps[call.Op]
	if len(queue) == 0 {
		return step{}
	}
	f.steps[call.Op] = queue[1:]
	return step{queue[0]}
}
