package sandboxtest

import (
	"sync"
	"testing"
	"time"

	"executor/internal/sandbox"
)

// stubborn are trees that have to be killed: each prints ready.
var stubborn = map[string]string{
	"TERM is ignored":      `trap "" TERM INT HUP; echo ready; while :; do sleep 1; done`,
	"by its child as well": `trap "" TERM; sh -c 'trap "" TERM; echo ready; sleep 300; sleep 300' & wait; wait`,
	"in another session":   `setsid sh -c 'trap "" TERM; echo ready; sleep 300; sleep 300' & sleep 300`,
	"without its parent":   `(setsid sh -c 'trap "" TERM; echo ready; sleep 300; sleep 300' &) ; trap "" TERM; sleep 300; sleep 300`,
	"without a mark":       `(env -i sh -c 'trap "" TERM; echo ready; sleep 300; sleep 300' &) ; sleep 300; sleep 300`,
	"stopped":              `trap "" TERM; sh -c 'kill -STOP $$' & sleep 0.1; echo ready; kill -STOP $$; sleep 300`,
}

// forks is one more of them. It takes all of the machine.
const forks = `trap "" TERM; f() { while :; do (trap "" TERM; sleep 0.02) & done; }; (f) & (f) & echo ready; sleep 300; sleep 300`

var stopTests = map[string]func(*testing.T, Subject){
	"TERM and a grace": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(held+`trap "echo bye; sleep 0.1; echo done; exit 0" TERM; sleep 300 & echo ready; wait`))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		b.stop(1, patience)
		if got := f.end(); !got.Success() {
			t.Errorf("%+v", got)
		}
		f.until("bye\ndone\n")
		b.allDead()
	},
	"TERM wakes": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(`trap "echo bye; exit 3" TERM; echo ready; kill -STOP $$`))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		promptly(t, "stop", func() { b.stop(1, patience) })
		f.until("bye")
		if got := f.end(); got.Code != 3 {
			t.Errorf("%+v", got)
		}
	},
	"TERM kills": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(held+"echo ready; sleep 300; sleep 300"))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		promptly(t, "stop", func() { b.stop(1, patience) })
		if got := f.end(); got != (sandbox.Exit{Code: 143, Signal: "SIGTERM"}) {
			t.Errorf("%+v", got)
		}
		b.allDead()
	},
	"KILL after the grace": func(t *testing.T, s Subject) {
		for name, script := range stubborn {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				kill(t, s, script)
			})
		}
	},
	"no grace": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(held+"trap 'echo bye' TERM; echo ready; sleep 300; sleep 300"))
		f := b.follow(1, sandbox.Offsets{})
		f.until("ready")
		b.stop(1, 0)
		if got := f.end(); got != (sandbox.Exit{Code: 137, Signal: "SIGKILL"}) || f.stream(sandbox.Stdout) != "ready\n" {
			t.Errorf("%+v, %q", got, f.stream(sandbox.Stdout))
		}
		b.allDead()
	},
	"right after the start": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		for n := range 10 {
			b.start(n+1, shell(held+"sleep 300; sleep 300"))
			b.stop(n+1, patience)
			b.allDead()
			if f := b.follow(n+1, sandbox.Offsets{}); f.end().Success() {
				t.Errorf("%+v", f.exit)
			}
		}
	},
	"stopped already": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.stop(1, patience) // never started
		b.start(1, shell("exit 8"))
		f := b.follow(1, sandbox.Offsets{})
		f.end()
		for range 2 {
			b.stop(1, patience)
		}
		if got := b.follow(1, sandbox.Offsets{}).end(); got.Code != 8 {
			t.Errorf("stopping changed its end: %+v", got)
		}
	},
	"by another executor, by several": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.start(1, shell(held+"setsid sleep 300 & echo ready; sleep 300; sleep 300"))
		b.follow(1, sandbox.Offsets{}).until("ready")
		if err := b.conn.Close(); err != nil {
			t.Error("close:", err)
		}
		var wg sync.WaitGroup
		for range 4 {
			other := b.again()
			wg.Go(func() {
				if err := other.conn.Stop(soon(t), b.launch(1), 0); err != nil {
					t.Error("stop:", err)
				}
			})
		}
		wg.Wait()
		b.again().allDead()
	},
	"others live on": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkfifo go")
		b.start(1, shell("echo ready; sleep 300"))
		b.start(10, shell("echo ready; read x <go; exit 3"))
		b.follow(1, sandbox.Offsets{}).until("ready")
		other := b.follow(10, sandbox.Offsets{})
		other.until("ready")
		b.stop(1, 0)
		b.sh("echo >go")
		if got := other.end(); got.Code != 3 {
			t.Errorf("%+v", got)
		}
	},
}

// kill stops what does not want to end.
func kill(t *testing.T, s Subject, script string) {
	b := newBox(t, s)
	b.start(1, shell(held+script))
	f := b.follow(1, sandbox.Offsets{})
	f.until("ready")
	promptly(t, "stop", func() { b.stop(1, 50*time.Millisecond) })
	if got := f.end(); got != (sandbox.Exit{Code: 137, Signal: "SIGKILL"}) &&
		got != (sandbox.Exit{Code: 143, Signal: "SIGTERM"}) {
		t.Errorf("%+v", got)
	}
	b.allDead()
}
