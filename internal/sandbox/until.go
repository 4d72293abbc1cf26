package sandbox

import (
	"context"
	"io"
)

// Until is r until ctx is done: from then on, and within a Read that does not
// return, an error that is ctx's cause. That Read of r is left behind, so that r
// is not to be used any more.
func Until(ctx context.Context, r io.Reader) io.Reader {
	return &until{ctx: ctx, from: r, bytes: make([]byte, 64<<10), done: make(chan read, 1)}
}

type until struct {
	ctx   context.Context
	from  io.Reader
	bytes []byte // of the Read that is under way
	done  chan read
}

type read struct {
	n   int
	err error
}

func (u *until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	bytes := u.bytes[:min(len(p), len(u.bytes))]
	go func() {
		n, err := u.from.Read(bytes)
		u.done <- read{n, err}
	}()
	select {
	case got := <-u.done:
		return copy(p, bytes[:got.n]), got.err
	case <-u.ctx.Done():
		return 0, context.Cause(u.ctx)
	}
}
