package drukbox

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"executor/internal/sandbox"
)

// lock keeps other creates of the key on this machine waiting. The file may
// be removed by forget while it is waited for: then the next one counts.
func (d keyDir) lock(ctx context.Context, key sandbox.Key) (unlock func(), err error) {
	const op = "lock the key of a host"
	path := d.file(hashed(key) + lockSuffix)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, diskFault(op, err)
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && same(file, path) {
			return func() { file.Close() }, nil
		}
		file.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, diskFault(op, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func same(file *os.File, path string) bool {
	a, err := file.Stat()
	b, err2 := os.Stat(path)
	return err == nil && err2 == nil && os.SameFile(a, b)
}
