package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	startLock  = "start.lock"
	usersLock  = "users.lock"
	serverLock = "server.lock"
)

// poll is the pause between two looks at a lock or at a server that does not answer yet. Neither can be waited for
// together with a context.
const poll = 20 * time.Millisecond

// locks are the home's three lock files (see the package's doc), each open for as long as the server is used. They
// keep their meaning when somebody deletes the home meanwhile.
type locks struct {
	start, users, server *os.File
}

func openLocks(h home) (*locks, error) {
	l := &locks{}
	for _, lock := range []struct {
		file **os.File
		name string
	}{{&l.start, startLock}, {&l.users, usersLock}, {&l.server, serverLock}} {
		file, err := os.OpenFile(h.path(lock.name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			l.close()
			return nil, err
		}
		*lock.file = file
	}
	return l, nil
}

// close releases what is held. The server keeps server.lock, it has its own copy of the open file.
func (l *locks) close() {
	for _, file := range []*os.File{l.server, l.users, l.start} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// tryLock takes the flock, or turns the one that is held into another kind. False: somebody else holds it; a lock
// that was to be turned is lost then.
func tryLock(file *os.File, how int) (bool, error) {
	for {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}

// waitLock takes the flock, and tries at least once however late it is.
func waitLock(ctx context.Context, file *os.File, how int) error {
	for {
		if taken, err := tryLock(file, how); taken || err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}

func unlock(file *os.File) error {
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_UN); err != nil {
		return fmt.Errorf("unlock %s: %w", file.Name(), err)
	}
	return nil
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(poll):
		return nil
	}
}
