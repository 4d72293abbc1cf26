package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"sync"

	"executor/internal/sandbox"
)

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
