package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Start implements sandbox.Conn.
func (c *Conn) Start(ctx context.Context, launch sandbox.Launch, cmd sandbox.Command) (sandbox.Process, error) {
	const op = "start process"
	header, err := c.header(cmd, `"$mark"`, sandbox.SuperviseArgv(c.shell(), nil, runDir, cmd.Argv))
	if err != nil {
		return sandbox.Process{}, err
	}
	if ctx.Err() != nil {
		return sandbox.Process{}, context.Cause(ctx)
	}
	nonce := newNonce()
	input := io.MultiReader(strings.NewReader(header+nonce+"\n"), bytes.NewReader(cmd.Stdin))
	s := c.start(ctx, nonce, []string{launch.Name(), strconv.Itoa(len(cmd.Stdin)), c.ceiling()}, input)
	answer, goesOn, err := s.started()
	if goesOn {
		c.standbys.put(launch, s)
	}
	if err != nil {
		return sandbox.Process{}, err
	}
	if answer.word != following && answer.word != "started" && answer.word != "adopted" {
		return sandbox.Process{}, answer.fault(op)
	}
	at, err := strconv.ParseInt(arg(answer, 0), 10, 64)
	if err != nil {
		return sandbox.Process{}, faults.New(faults.SandboxResponse, op, err)
	}
	return sandbox.Process{StartedAt: time.Unix(at, 0), Adopted: answer.word == "adopted"}, nil
}

// Stop implements sandbox.Conn.
func (c *Conn) Stop(ctx context.Context, launch sandbox.Launch, grace time.Duration) error {
	hundredths := (grace + 10*time.Millisecond - 1) / (10 * time.Millisecond)
	answer, err := c.call(ctx, "stop", []string{launch.Name(), strconv.FormatInt(int64(hundredths), 10)}, sandbox.Stdio{})
	if err != nil {
		return err
	}
	return answer.expect("stop process", "ok")
}

// Follow implements sandbox.Conn. A follower in the host streams both files
// until the process has ended; when the way to it breaks, another one goes on
// from the offsets.
func (c *Conn) Follow(ctx context.Context, launch sandbox.Launch, from sandbox.Offsets, to sandbox.Sink) (sandbox.Exit, error) {
	f := &follower{conn: c, launch: launch, to: to, at: from}
	pause, answered := c.cfg.Retry, time.Now()
	for {
		before := f.at
		exit, err := f.once(ctx)
		if ctx.Err() != nil {
			return sandbox.Exit{}, context.Cause(ctx)
		}
		if err == nil || f.failed != nil || !errors.Is(err, faults.SandboxUnavailable) && !errors.Is(err, errBroken) {
			return exit, err
		}
		// What breaks off as soon as it has begun, again and again, is no answer.
		if f.at != before || !f.began.IsZero() && time.Since(f.began) > c.cfg.Retry {
			pause, answered = c.cfg.Retry, time.Now()
		}
		if time.Since(answered) > c.cfg.Patience {
			return sandbox.Exit{}, err
		}
		select {
		case <-ctx.Done():
			return sandbox.Exit{}, context.Cause(ctx)
		case <-time.After(pause):
		}
		pause = min(2*pause, 30*time.Second)
	}
}

// errBroken: a follower ended before it had handed everything over. The process
// is not touched by it.
var errBroken = errors.New("the follower broke off")

type follower struct {
	conn   *Conn
	launch sandbox.Launch
	to     sandbox.Sink
	at     sandbox.Offsets
	given  sandbox.Offsets // up to where it was told to give back
	tell   io.Writer       // what is told
	began  time.Time       // when the one in the host did; zero: it did not
	failed error           // of the sink
}

func (f *follower) once(ctx context.Context) (sandbox.Exit, error) {
	const op = "follow process"
	f.began = time.Time{}
	answer, err := f.call(ctx)
	if f.failed != nil {
		return sandbox.Exit{}, f.failed
	}
	if err != nil {
		if errors.Is(err, faults.SandboxLost) {
			err = errors.Join(err, errBroken)
		}
		return sandbox.Exit{}, err
	}
	if answer.word == "given" {
		given, _ := strconv.ParseInt(arg(answer, 1), 10, 64)
		return sandbox.Exit{}, sandbox.NotKept(sandbox.Stream(arg(answer, 0)), given)
	}
	if answer.word != "ended" && answer.word != "lost" && answer.word != "over" || len(answer.args) < 4 {
		return sandbox.Exit{}, answer.fault(op)
	}
	if arg(answer, 2) != strconv.FormatInt(f.at.Stdout, 10) || arg(answer, 3) != strconv.FormatInt(f.at.Stderr, 10) {
		return sandbox.Exit{}, faults.New(faults.SandboxUnavailable, op, errBroken)
	}
	if answer.word == "over" {
		return sandbox.Exit{}, sandbox.OverCeiling()
	}
	end, err := sandbox.ParseEnd(answer.body)
	if answer.word == "lost" {
		end.Exit = sandbox.Exit{Code: killed}
		err = errors.New("the supervisor is gone and left no exit status")
	}
	if oom := outOfMemory(op, end.Exit, arg(answer, 0), arg(answer, 1)); oom != nil {
		return end.Exit, oom
	}
	if err != nil {
		return sandbox.Exit{}, unseen(op, err)
	}
	return end.Exit, end.DiskFull()
}

// call runs a follower in the host, the one that waits for us before all.
func (f *follower) call(ctx context.Context) (answer, error) {
	out := &afterFirstLine{
		to:    f.stream(sandbox.Stdout, &f.at.Stdout, &f.given.Stdout),
		found: func() { f.began = time.Now() },
	}
	errs := f.stream(sandbox.Stderr, &f.at.Stderr, &f.given.Stderr)
	if s := f.conn.standbys.take(f.launch); s != nil {
		if f.at == (sandbox.Offsets{}) {
			f.tell = s.tell
			return s.follow(ctx, out, errs)
		}
		s.cancel(errNotFollowed)
	}
	open, tell := io.Pipe() // an input that ends with us
	defer tell.Close()
	f.tell = tell
	return f.conn.call(ctx, "follow",
		[]string{f.launch.Name(), strconv.FormatInt(f.at.Stdout, 10), strconv.FormatInt(f.at.Stderr, 10), f.conn.ceiling()},
		sandbox.Stdio{In: open, Out: out, Err: errs})
}

func (c *Conn) ceiling() string { return strconv.FormatInt(c.cfg.OutputCeiling, 10) }

// stream hands bytes to the sink, counts them, and tells the host what it need
// not keep any more.
func (f *follower) stream(name sandbox.Stream, at, given *int64) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if len(p) == 0 {
			return 0, nil
		}
		if err := f.to(name, *at, p); err != nil {
			f.failed = err
			return 0, err
		}
		*at += int64(len(p))
		if upTo := sandbox.GiveBack(*at, *given); upTo != *given {
			*given = upTo
			go fmt.Fprintln(f.tell, name, upTo) // nobody waits for the way there
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
