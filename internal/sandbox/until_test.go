package sandbox_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"executor/internal/sandbox"
)

func TestUntil(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	long := strings.Repeat("x", 1<<20)
	if err := iotest.TestReader(sandbox.Until(ctx, strings.NewReader(long)), []byte(long)); err != nil {
		t.Error(err)
	}
	full := errors.New("full")
	if _, err := io.ReadAll(sandbox.Until(ctx, iotest.ErrReader(full))); err != full {
		t.Errorf("got %v", err)
	}
	enough := errors.New("enough")
	never, w := io.Pipe()
	defer w.Close()
	r := sandbox.Until(ctx, never)
	ended := make(chan error)
	go func() { _, err := io.ReadAll(r); ended <- err }()
	if _, err := w.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	cancel(enough)
	if err := <-ended; err != enough {
		t.Errorf("got %v", err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != enough {
		t.Errorf("after its end: %d, %v", n, err)
	}
}
