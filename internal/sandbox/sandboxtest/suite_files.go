package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"

	"executor/internal/faults"
)

// outside are paths that leave the working directory, and out is a link to /
// in it.
var outside = []string{"", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "a/../..", "out/x", "out/tmp/x", "a\x00b"}

var fileTests = map[string]func(*testing.T, Subject){
	"there and back": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		for name, content := range map[string][]byte{"empty": nil, "a/b/c d ü": []byte("x"), "odd": odd()} {
			if err := b.conn.Upload(b.soon(), name, 0o640, bytes.NewReader(content)); err != nil {
				t.Fatalf("upload %q: %v", name, err)
			}
			if got, err := b.download(name); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%q: %d bytes, want %d, %v", name, len(got), len(content), err)
			}
		}
		if out := b.sh("stat -c %a empty; ls -A a/b"); out != "640\nc d ü\n" {
			t.Errorf("got %q", out)
		}
	},
	"a program": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		if err := b.conn.Upload(b.soon(), "bin/hello", 0o755, strings.NewReader("#!/bin/sh\necho hello\n")); err != nil {
			t.Fatal(err)
		}
		if out := b.sh("bin/hello"); out != "hello\n" {
			t.Errorf("got %q", out)
		}
	},
	"replaced": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("echo old >file; echo old >other; ln -s other link")
		for _, name := range []string{"file", "link"} {
			if err := b.conn.Upload(b.soon(), name, 0o644, strings.NewReader("new\n")); err != nil {
				t.Fatal(err)
			}
		}
		if out := b.sh("cat file link"); out != "new\nnew\n" {
			t.Errorf("got %q", out)
		}
	},
	"outside": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("ln -s / out; ln -s /etc/passwd passwd; mkdir dir")
		for _, name := range append(outside, "dir") {
			if err := b.conn.Upload(b.soon(), name, 0o644, strings.NewReader("x")); !errors.Is(err, faults.SandboxInvalid) {
				t.Errorf("upload %q: %v", name, err)
			}
		}
		for _, name := range append(outside, "dir", "out/etc/passwd", "passwd") {
			if _, err := b.download(name); !errors.Is(err, faults.SandboxInvalid) {
				t.Errorf("download %q: %v", name, err)
			}
		}
	},
	"missing": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		for _, name := range []string{"none", "none/none"} {
			if _, err := b.download(name); !errors.Is(err, fs.ErrNotExist) || faults.Classified(err) {
				t.Errorf("download %q: %v", name, err)
			}
		}
	},
	"no regular file": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("mkfifo fifo; ln -s /dev/zero zero")
		promptly(t, "download", func() {
			for _, name := range []string{"fifo", "zero"} {
				_, err := b.download(name)
				is(t, err, faults.SandboxInvalid)
			}
		})
	},
	"whole or not at all": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		b.sh("echo old >file")
		cut := errors.New("cut")
		ctx, cancel := context.WithCancel(b.soon())
		for name, upload := range map[string]func() error{
			"cut": func() error {
				return b.conn.Upload(b.soon(), "file", 0o644, io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(cut)))
			},
			"cancelled": func() error {
				return b.conn.Upload(ctx, "file", 0o644, endless(cancel))
			},
		} {
			promptly(t, name, func() {
				if err := upload(); err == nil || name == "cut" && !errors.Is(err, cut) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		if out := b.sh("cat file; ls -A"); out != "old\nfile\n" {
			t.Errorf("left %q", out)
		}
	},
}

func (b *box) download(name string) ([]byte, error) {
	r, err := b.conn.Download(b.soon(), name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// endless yields zeros, and calls enough after the first megabyte.
func endless(enough func()) io.Reader {
	total := 0
	return readerFunc(func(p []byte) (int, error) {
		if total += len(p); total > 1<<20 {
			enough()
		}
		return len(p), nil
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
