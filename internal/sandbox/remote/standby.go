package remote

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"executor/internal/sandbox"
)

// standbyFor is how long the operation of a Start waits for a Follow. What it
// would print waits in the host meanwhile, where it lies anyway.
const standbyFor = 10 * time.Second

var errNotFollowed = errors.New("nobody follows the process on this connection")

// standby is the operation of a Start that goes on in the host as a follower
// from offset 0: it saves the Follow that comes next a command of its own.
type standby struct {
	tell   io.WriteCloser // its input
	out    gate
	errs   gate
	cancel context.CancelCauseFunc
	begun  chan answer // one, if it goes on

	ended  chan struct{} // then the operation's end is known:
	answer answer
	err    error
}

// start runs the operation. ctx holds until it goes on.
func (c *Conn) start(ctx context.Context, nonce string, args []string, input io.Reader) *standby {
	open, tell := io.Pipe()
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &standby{
		tell: tell, cancel: cancel, begun: make(chan answer, 1), ended: make(chan struct{}),
		out:  gate{ctx: lasting, open: make(chan struct{})},
		errs: gate{ctx: lasting, open: make(chan struct{}), shut: true},
	}
	release := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	go func() {
		defer close(s.ended)
		defer tell.Close()
		defer cancel(nil)
		s.answer, s.err = c.run(lasting, nonce, "start", args,
			sandbox.Stdio{In: io.MultiReader(input, open), Out: &s.out},
			func(a answer) io.Writer {
				s.out.close()
				if release() {
					s.begun <- a
				}
				return &s.errs
			})
	}()
	return s
}

// started waits for what the operation says of its start.
func (s *standby) started() (a answer, goesOn bool, err error) {
	select {
	case a := <-s.begun:
		return a, true, nil
	case <-s.ended:
	}
	select {
	case a := <-s.begun: // what it started has ended already
		return a, true, nil
	default:
		return s.answer, false, s.err
	}
}

// follow lets everything through, until the operation ends or ctx does.
func (s *standby) follow(ctx context.Context, out, errs io.Writer) (answer, error) {
	defer context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })()
	if err := errors.Join(s.out.let(out), s.errs.let(errs)); err != nil {
		s.cancel(err)
	}
	<-s.ended
	return s.answer, s.err
}

// gate holds writes up until it is known where they go. Before it is closed it
// keeps them instead: the answer that we wait for may be behind them.
type gate struct {
	ctx  context.Context
	open chan struct{}

	mu   sync.Mutex
	shut bool
	kept []byte
	to   io.Writer
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

// let opens it.
func (g *gate) let(to io.Writer) error {
	_, err := to.Write(g.kept)
	g.to, g.kept = to, nil
	close(g.open)
	return err
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	if !shut {
		g.kept = append(g.kept, p...)
	}
	g.mu.Unlock()
	if !shut {
		return len(p), nil
	}
	select {
	case <-g.open:
		return g.to.Write(p)
	case <-g.ctx.Done():
		return 0, context.Cause(g.ctx)
	}
}

// standbys are those of a connection, by launch.
type standbys struct {
	mu     sync.Mutex
	of     map[sandbox.Launch]*standby
	closed bool
}

func (w *standbys) put(launch sandbox.Launch, s *standby) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		s.cancel(errNotFollowed)
		return
	}
	if w.of == nil {
		w.of = make(map[sandbox.Launch]*standby)
	}
	w.of[launch] = s
	time.AfterFunc(standbyFor, func() { w.drop(launch, s) })
}

// take is the one of launch, if there is one still.
func (w *standbys) take(launch sandbox.Launch) *standby {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of[launch]
	delete(w.of, launch)
	return s
}

func (w *standbys) drop(launch sandbox.Launch, s *standby) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[launch] == s {
		delete(w.of, launch)
		s.cancel(errNotFollowed)
	}
}

// close ends them all, and whatever comes.
func (w *standbys) close() {
	w.mu.Lock()
	waiting := w.of
	w.of, w.closed = nil, true
	w.mu.Unlock()
	for _, s := range waiting {
		s.cancel(errNotFollowed)
	}
	for _, s := range waiting {
		<-s.ended
	}
}
