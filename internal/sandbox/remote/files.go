package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Upload implements sandbox.Conn. The nonce behind the content says that it is
// whole; a host that does not get it keeps nothing. So a cancelled upload ends
// its input and waits a moment for the host to clean up.
func (c *Conn) Upload(ctx context.Context, name string, mode fs.FileMode, content io.Reader) error {
	const op = "upload"
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !filepath.IsLocal(name) || path.Clean(name) == "." || strings.ContainsRune(name, 0) {
		return invalid("%q is no path below the working directory", name)
	}
	name = path.Clean(name)
	after, cancel := outliving(ctx, cleanUp)
	defer cancel()
	nonce := newNonce()
	source := &upload{from: sandbox.Until(ctx, content), failed: make(chan error, 1)}
	answer, err := c.callAs(after, nonce, "put",
		[]string{path.Dir(name), path.Base(name), fmt.Sprintf("%o", mode.Perm())},
		sandbox.Stdio{In: io.MultiReader(source, source.whole(nonce))})
	select {
	case theirs := <-source.failed: // the caller's, and no fault of the host
		return theirs
	default:
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return answer.expect(op, "ok")
}

// outliving is ctx that ends later than ctx does.
func outliving(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	after, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(after, func() { timer.Stop() })
	})
	return after, func() { stop(); cancel(nil) }
}

// upload reads the content. An error of it, or of our context, is an end.
type upload struct {
	from   io.Reader
	failed chan error // the first one
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	if err != nil && err != io.EOF {
		u.failed <- err
		err = io.EOF
	}
	return n, err
}

// whole yields the nonce if all of the content was read.
func (u *upload) whole(nonce string) io.Reader {
	rest := strings.NewReader(nonce)
	return readerFunc(func(p []byte) (int, error) {
		if len(u.failed) > 0 {
			return 0, io.EOF
		}
		return rest.Read(p)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Download implements sandbox.Conn. What is no regular file is refused. A file
// whose end was not said to be one reads as an error.
func (c *Conn) Download(ctx context.Context, name string) (io.ReadCloser, error) {
	const op = "download"
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return nil, invalid("%q is no path below the working directory", name)
	}
	name = path.Clean(name)
	if name == "." {
		return nil, invalid("%q is no regular file", name)
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	open, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		out := &afterFirstLine{to: w, found: func() { close(open) }}
		answer, err := c.call(ctx, "get", []string{path.Dir(name), path.Base(name)}, sandbox.Stdio{Out: out})
		switch {
		case err != nil:
		case answer.word == "missing":
			err = &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		default:
			err = answer.expect(op, "ok")
		}
		ended <- err
		w.CloseWithError(err) // nil is io.EOF
	}()
	d := &download{Reader: r, close: func() error { cancel(); return r.Close() }}
	select {
	case <-open:
	case err := <-ended:
		if err != nil {
			_ = d.Close()
			return nil, err
		}
	}
	return d, nil
}

type download struct {
	io.Reader
	close func() error
}

func (d *download) Close() error { return d.close() }

// afterFirstLine hands on what comes after the line that says that content
// begins.
type afterFirstLine struct {
	to    io.Writer
	found func()
	line  []byte
	past  bool
}

const contentLine = "content\n"

func (a *afterFirstLine) Write(p []byte) (int, error) {
	if a.past {
		return a.to.Write(p)
	}
	a.line = append(a.line, p...)
	if len(a.line) < len(contentLine) {
		return len(p), nil
	}
	rest, ok := bytes.CutPrefix(a.line, []byte(contentLine))
	if !ok {
		return 0, faults.Errorf(faults.SandboxResponse, "the host sends %q before content", a.line[:len(contentLine)])
	}
	a.past = true
	a.found()
	if len(rest) == 0 {
		return len(p), nil
	}
	if _, err := a.to.Write(rest); err != nil {
		return 0, err
	}
	return len(p), nil
}
