package runs

import (
	"context"
	"sync"
	"time"

	"executor/internal/harness"
	"executor/internal/sandbox"
)

const (
	outputPause   = 50 * time.Millisecond  // between two writes of a process's output
	floodPause    = 500 * time.Millisecond // between two writes past the head, where most bytes are dropped anyway
	outputPending = 1 << 20                // bytes of a stream's head that wait for Postgres before the reader does
	chunkBytes    = 256 << 10
)

// output carries the bytes of one process from its follower to the store.
// Within a stream's head every byte is stored, and a slow Postgres holds the
// follower back. Past the head only the newest bytes are kept: the follower
// runs ahead and what overflows the tail is dropped before it is written.
type output struct {
	store  *Store
	claim  *Claim
	place  place
	launch int
	half   int64 // of the cap: the size of head and tail

	tail *ring // of stdout, for the step's result

	mu      sync.Mutex
	room    sync.Cond // of pending
	pending map[sandbox.Stream]*pending
	err     error
	closed  bool
	wake    chan struct{}
	done    chan struct{}
}

// pending is what a stream has that is not stored yet.
type pending struct {
	stored int64 // where the stored stream ends
	pos    int64 // of data's first byte
	data   []byte
}

func newOutput(ctx context.Context, s *Store, c *Claim, p place, launch int, from sandbox.Offsets, limit int64) (*output, error) {
	o := &output{
		store: s, claim: c, place: p, launch: launch, half: limit / 2,
		tail: &ring{max: harness.MaxResult + 1},
		pending: map[sandbox.Stream]*pending{
			sandbox.Stdout: {stored: from.Stdout, pos: from.Stdout},
			sandbox.Stderr: {stored: from.Stderr, pos: from.Stderr},
		},
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	o.room.L = &o.mu
	if from.Stdout > 0 {
		stored, err := s.storedTail(ctx, c, p, launch, sandbox.Stdout, harness.MaxResult)
		if err != nil {
			return nil, err
		}
		o.tail.write(stored)
	}
	go o.drain(context.WithoutCancel(ctx))
	return o, nil
}

// write is the follower's sink.
func (o *output) write(stream sandbox.Stream, offset int64, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pending[stream]
	for o.err == nil && p.pos < o.half && len(p.data) >= outputPending {
		o.room.Wait()
	}
	if o.err != nil {
		return o.err
	}
	if stream == sandbox.Stdout {
		o.tail.write(data)
	}
	if len(p.data) == 0 {
		p.pos = offset
	}
	p.data = append(p.data, data...)
	if over := int64(len(p.data)) - o.half; p.pos >= o.half && over > 0 {
		p.data = append(p.data[:0], p.data[over:]...)
		p.pos += over
	}
	o.signal()
	return nil
}

func (o *output) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// drain stores what is pending until the output is closed or cannot be
// stored.
func (o *output) drain(ctx context.Context) {
	defer close(o.done)
	for range o.wake {
		flooded := false
		for _, stream := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
			for {
				more, flood, err := o.storeNext(ctx, stream)
				if err != nil {
					o.fail(err)
					return
				}
				flooded = flooded || flood
				if !more {
					break
				}
			}
		}
		if o.finished() {
			return
		}
		pause := outputPause
		if flooded {
			pause = floodPause
		}
		o.rest(pause)
	}
}

// rest lets output gather, unless the process has ended.
func (o *output) rest(pause time.Duration) {
	for end := time.Now().Add(pause); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		o.mu.Lock()
		closed := o.closed
		o.mu.Unlock()
		if closed {
			return
		}
	}
}

// storeNext stores one chunk of the stream; more says that there was one.
func (o *output) storeNext(ctx context.Context, stream sandbox.Stream) (more, flood bool, err error) {
	o.mu.Lock()
	p := o.pending[stream]
	n := int64(min(len(p.data), chunkBytes))
	if p.pos < o.half {
		n = min(n, o.half-p.pos) // the head ends at a chunk's border
	}
	k := chunk{stream: stream, from: p.stored, pos: p.pos, data: append([]byte(nil), p.data[:n]...), head: o.half}
	o.mu.Unlock()
	if n == 0 {
		return false, false, nil
	}
	end := k.pos + n
	flood = end > o.half
	if flood {
		k.keepFrom = end - o.half
	}
	if err := o.store.appendOutput(ctx, o.claim, o.place, o.launch, k); err != nil {
		return false, flood, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p.stored = end
	// What is before end may have been dropped from pending meanwhile.
	if gone := end - p.pos; gone > 0 {
		gone = min(gone, int64(len(p.data)))
		p.data = append(p.data[:0], p.data[gone:]...)
		p.pos += gone
	}
	if len(p.data) == 0 {
		p.data, p.pos = nil, max(p.pos, end)
	}
	o.room.Broadcast()
	return true, flood, nil
}

func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	o.room.Broadcast()
}

func (o *output) finished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed && len(o.pending[sandbox.Stdout].data) == 0 && len(o.pending[sandbox.Stderr].data) == 0
}

// close ends the output; with keep, after everything that was written is
// stored. It returns why something could not be stored.
func (o *output) close(keep bool) error {
	o.mu.Lock()
	o.closed = true
	if !keep {
		for _, p := range o.pending {
			p.data = nil
		}
	}
	o.signal()
	o.mu.Unlock()
	<-o.done
	return o.err
}

// ring keeps the newest max bytes written to it.
type ring struct {
	max  int
	data []byte
}

func (r *ring) write(p []byte) {
	r.data = append(r.data, p...)
	if len(r.data) > 2*r.max {
		r.data = append(r.data[:0], r.data[len(r.data)-r.max:]...)
	}
}

func (r *ring) bytes() []byte { return r.data[max(0, len(r.data)-r.max):] }
