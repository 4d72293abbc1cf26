package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

var ceilingTests = map[string]func(*testing.T, Subject){
	"a flood on stdout": func(t *testing.T, s Subject) { flood(t, s, "") },
	"a flood on stderr": func(t *testing.T, s Subject) { flood(t, s, ">&2") },
	"an end of its own": func(t *testing.T, s Subject) {
		b := newCeilingBox(t, s, 1<<20)
		b.start(1, shell(held+"until [ -e go ]; do sleep 0.01; done; head -c 3145728 /dev/zero; touch printed; exit 5"))
		_ = b.conn.Close() // nobody follows it, nor is about to
		b.dial(b.provider)
		b.sh("touch go; until [ -e printed ]; do sleep 0.01; done")
		b.dead()
		b.stop(1, patience) // waits until the end is recorded
		f := b.follow(1, sandbox.Offsets{})
		if got := f.end(); got.Code != 5 || len(f.stream(sandbox.Stdout)) != 3<<20 {
			t.Errorf("%+v, %d bytes", got, len(f.stream(sandbox.Stdout)))
		}
	},
	"space is given back": func(t *testing.T, s Subject) {
		const ceiling, total, piece = 128 << 20, 160 << 20, 10 << 20
		b := newCeilingBox(t, s, ceiling)
		// It waits for its reader after each piece, and in the end says how
		// many blocks they all take.
		b.start(1, shell(`for i in $(seq 16); do
			head -c 10485760 /dev/zero | tr '\0' $((i % 8))
			until [ -e read.$i ]; do sleep 0.01; done
		done
		stat -L -c %b /proc/$$/fd/1 >&2`))
		stop := errors.New("stop")
		var said string
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		read := func(from, until int64) (exit sandbox.Exit, err error) {
			pieces, done := make(chan int64, total/piece), make(chan struct{})
			go func() {
				defer close(done)
				exit, err = b.conn.Follow(ctx, b.launch(1), sandbox.Offsets{Stdout: from}, func(s sandbox.Stream, offset int64, data []byte) error {
					if s == sandbox.Stderr {
						said += string(data)
						return nil
					}
					if want := byte('0' + (offset/piece+1)%8); offset != from || data[0] != want {
						return fmt.Errorf("%q at %d, want %q at %d", data[0], offset, want, from)
					}
					from += int64(len(data))
					for i := offset/piece + 1; i <= from/piece; i++ {
						pieces <- i
					}
					if from >= until {
						return stop
					}
					return nil
				})
			}()
			for {
				select {
				case i := <-pieces:
					b.sh(fmt.Sprint("touch read.", i))
				case <-done:
					return exit, err
				}
			}
		}
		if !s.GivesBack {
			_, err := read(0, total)
			isOver(t, err)
			return
		}
		if _, err := read(0, total-4*piece); err != stop {
			t.Fatal(err)
		}
		// The executor died and had not stored all that it was handed.
		exit, err := read(total-4*piece-60<<20, total+1)
		if err != nil || !exit.Success() {
			t.Fatalf("%+v, %v", exit, err)
		}
		if blocks, err := strconv.Atoi(strings.TrimSpace(said)); err != nil || blocks > 100<<20/512 {
			t.Errorf("%d bytes take %q blocks, %v", total, said, err)
		}
		_, err = read(0, 1)
		is(t, err, faults.SandboxInvalid) // a hole is no output
		if exit, err := read(total, total); err != nil || !exit.Success() {
			t.Errorf("from the end: %+v, %v", exit, err)
		}
	},
}

// flood stops what prints too much, while nobody takes it.
func flood(t *testing.T, s Subject, redirect string) {
	const ceiling = 4 << 20
	b := newCeilingBox(t, s, ceiling)
	b.start(1, shell(held+"(setsid sleep 300 &); trap '' TERM; while :; do head -c 1048576 /dev/zero; sleep 0.01; done "+redirect))
	var got sandbox.Offsets
	var err error
	var once sync.Once
	begun, dead, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, err = b.conn.Follow(b.soon(), b.launch(1), sandbox.Offsets{}, func(s sandbox.Stream, offset int64, data []byte) error {
			once.Do(func() { close(begun) })
			<-dead
			if end := offset + int64(len(data)); s == sandbox.Stdout {
				got.Stdout = end
			} else {
				got.Stderr = end
			}
			return nil
		})
	}()
	defer func() { <-done }()
	func() {
		defer close(dead)
		select {
		case <-begun:
			promptly(t, "stopping it", b.dead)
		case <-done:
		}
	}()
	<-done
	isOver(t, err)
	if n := got.Stdout + got.Stderr; n <= ceiling || n > 512<<20 {
		t.Errorf("it printed %d bytes", n)
	}
	// It stays the truth.
	b.stop(1, 0)
	for _, other := range []*box{b, b.again()} {
		f := other.follow(1, got)
		<-f.done
		isOver(t, f.err)
	}
}

// newCeilingBox is a host whose processes may have so many bytes on the disk.
func newCeilingBox(t *testing.T, s Subject, bytes int64) *box {
	t.Helper()
	if s.Ceiling == nil {
		t.Skip("its ceiling cannot be set")
	}
	s.Open = func(t *testing.T) sandbox.Provider { return s.Ceiling(t, bytes) }
	return newBox(t, s)
}

// dead waits until nothing is left of a tree that began with held.
func (b *box) dead() {
	b.Helper()
	for end := time.Now().Add(patience); !b.exec(shell("flock -n held true")).Success(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("it lives on")
		}
	}
}

// isOver checks the fault of what was stopped for its output.
func isOver(t *testing.T, err error) {
	t.Helper()
	is(t, err, faults.SandboxDiskFull)
	if f := faults.Of(err); err != nil && (!f.Permanent || f.Outcome != faults.Done) {
		t.Errorf("permanent: %v, outcome %q", f.Permanent, f.Outcome)
	}
}
