package local

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// files opens the working directory. Nothing that is done through it leaves it.
func (c *conn) files() (*os.Root, error) {
	root, err := os.OpenRoot(c.dir.work())
	if err != nil {
		return nil, c.orGone(fault("open the working directory", err))
	}
	return root, nil
}

// Upload implements sandbox.Conn.
func (c *conn) Upload(ctx context.Context, name string, mode fs.FileMode, content io.Reader) error {
	const op = "upload"
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !filepath.IsLocal(name) || path.Clean(name) == "." {
		return invalid("%q is no path below the working directory", name)
	}
	root, err := c.files()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return c.fileFault(op, err)
	}
	temporary := path.Join(path.Dir(name), ".upload-"+rand.Text())
	file, err := root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return c.fileFault(op, err)
	}
	defer root.Remove(temporary) // nothing is there once it was renamed
	defer file.Close()
	source := &source{from: sandbox.Until(ctx, content)}
	if _, err := io.Copy(file, source); err != nil {
		if source.err != nil { // the caller's, and no fault of the host
			return source.err
		}
		return c.fileFault(op, err)
	}
	if err := errors.Join(file.Chmod(mode.Perm()), file.Close()); err != nil {
		return c.fileFault(op, err)
	}
	if err := root.Rename(temporary, name); err != nil {
		return c.fileFault(op, err)
	}
	return nil
}

// Download implements sandbox.Conn. What is no regular file is refused: a FIFO
// would never end.
func (c *conn) Download(ctx context.Context, name string) (io.ReadCloser, error) {
	const op = "download"
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !filepath.IsLocal(name) {
		return nil, invalid("%q is no path below the working directory", name)
	}
	root, err := c.files()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, c.orGone(err)
	}
	if err != nil {
		return nil, c.fileFault(op, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = invalid("%q is no regular file", name)
	}
	if err != nil {
		file.Close()
		return nil, c.fileFault(op, err)
	}
	return &download{ctx, file}, nil
}

// download is an open file that is read no further when its context is done.
type download struct {
	ctx  context.Context
	file *os.File
}

func (d *download) Read(p []byte) (int, error) {
	if d.ctx.Err() != nil {
		return 0, context.Cause(d.ctx)
	}
	return d.file.Read(p)
}

func (d *download) Close() error { return d.file.Close() }

// fileFault classifies an error of a file operation. One of os.Root that no
// system call made is its refusal to leave the directory.
func (c *conn) fileFault(op string, err error) error {
	var errno syscall.Errno
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	if !errors.As(err, &errno) && (errors.As(err, &pathErr) || errors.As(err, &linkErr)) {
		return faults.New(faults.SandboxInvalid, op, err)
	}
	return c.orGone(fault(op, err))
}

// source remembers that reading failed, or that its context ended it.
type source struct {
	from io.Reader
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
