package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"executor/internal/faults"
)

// Every operation of a provider goes through call. It gives the operation its
// own deadline, and asks about contexts before it believes an error, in this
// order:
//
//	our context is done          its cause, and not a fault: somebody cancelled, or
//	                             the caller's own time is up
//	the caller's reader or sink  its error, unchanged
//	the operation's deadline     sandbox_timeout over what the provider said
//	a context that is not ours   sandbox_unavailable or sandbox_timeout: a connection
//	                             or a limit inside the provider, not classified there
//	else                         the provider's error, unchanged
//
// A success stays one, whatever became of the contexts: what was made must be
// recorded and undone. A panic of the provider is an internal fault, so that
// roll-back and release go on after it.

// call runs f as the operation op. A limit of 0 is no deadline.
func call[T any](ctx context.Context, c *Client, op string, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	opCtx, cancel := withLimit(ctx, op, limit)
	defer cancel()
	return within(ctx, opCtx, c, op, f)
}

// within is call for an operation whose deadline covers more than f: opCtx is
// ctx with that deadline.
func within[T any](ctx, opCtx context.Context, c *Client, op string, f func(context.Context) (T, error)) (T, error) {
	var result, zero T
	if ctx.Err() != nil {
		return zero, &interrupted{op: op, cause: context.Cause(ctx)}
	}
	err := c.guard(op, func() (err error) {
		result, err = f(opCtx)
		return err
	})
	if err != nil {
		c.log.Debug().Err(err).Str("op", op).Msg("sandbox operation failed")
		return zero, judge(ctx, opCtx, op, err)
	}
	return result, nil
}

// do is call for an operation without a result.
func (c *Client) do(ctx context.Context, op string, limit time.Duration, f func(context.Context) error) error {
	_, err := call(ctx, c, op, limit, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f(ctx)
	})
	return err
}

func withLimit(ctx context.Context, op string, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s took longer than %s", op, limit))
}

func judge(ours, opCtx context.Context, op string, err error) error {
	var callers *callersError
	switch {
	case ours.Err() != nil:
		return &interrupted{op: op, cause: context.Cause(ours)}
	case errors.As(err, &callers):
		return callers.error
	case opCtx.Err() != nil:
		f := faults.New(faults.SandboxTimeout, op, err)
		f.Outcome = faults.Of(err).Outcome
		return f
	case faults.Classified(err):
		return err
	case errors.Is(err, context.Canceled):
		return faults.New(faults.SandboxUnavailable, op, err)
	case errors.Is(err, context.DeadlineExceeded):
		return faults.New(faults.SandboxTimeout, op, err)
	}
	return err
}

func (c *Client) guard(op string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.log.Error().Str("op", op).Any("panic", v).Bytes("stack", debug.Stack()).Msg("panic in a sandbox operation")
			err = faults.New(faults.Internal, op, fmt.Errorf("panic: %v", v))
		}
	}()
	return f()
}

// interrupted says that our own context ended an operation. It has a type so
// that a cause that happens to look like a network error
// (context.DeadlineExceeded is a net.Error) is never read as one.
type interrupted struct {
	op    string
	cause error
}

func (e *interrupted) Error() string { return e.op + ": " + e.cause.Error() }
func (e *interrupted) Unwrap() error { return e.cause }

// callersError carries an error of the caller's reader or sink through a
// provider, so that it is not taken for one of the provider's.
type callersError struct{ error }

func (e *callersError) Unwrap() error { return e.error }

type callersReader struct{ io.Reader }

func (r callersReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = &callersError{err}
	}
	return n, err
}
