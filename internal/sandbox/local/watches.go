package local

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watches tells followers that something happened in their run directories:
// output was written, exit appeared, or the lock was closed for good because
// its supervisor is gone. One inotify instance serves all of them, since a user
// may have 128 only; it exists while there is a follower.
type watches struct {
	mu      sync.Mutex
	inotify *os.File
	byWatch map[int32]map[chan struct{}]bool
}

const watched = unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE

// add watches a directory until forget is called. Events fall together: one
// stands for any number. Where there is no inotify to be had, events is nil.
func (w *watches) add(dir string) (events <-chan struct{}, forget func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, func() {}
		}
		w.inotify = os.NewFile(uintptr(fd), "inotify")
		w.byWatch = map[int32]map[chan struct{}]bool{}
		go w.listen(w.inotify)
	}
	id, err := w.watch(dir)
	if err != nil {
		w.closeIfIdle()
		return nil, func() {}
	}
	c := make(chan struct{}, 1)
	if w.byWatch[id] == nil {
		w.byWatch[id] = map[chan struct{}]bool{}
	}
	w.byWatch[id][c] = true
	return c, func() { w.forget(id, c) }
}

func (w *watches) forget(id int32, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byWatch[id], c)
	if len(w.byWatch[id]) == 0 {
		delete(w.byWatch, id)
		_ = w.control(func(fd int) error { _, err := unix.InotifyRmWatch(fd, uint32(id)); return err })
	}
	w.closeIfIdle()
}

func (w *watches) closeIfIdle() {
	if len(w.byWatch) == 0 {
		w.inotify.Close() // ends listen
		w.inotify = nil
	}
}

func (w *watches) watch(dir string) (id int32, err error) {
	err = w.control(func(fd int) error {
		n, err := unix.InotifyAddWatch(fd, dir, watched)
		id = int32(n)
		return err
	})
	return id, err
}

// control uses the descriptor without taking it from the poller, as Fd would.
func (w *watches) control(do func(fd int) error) error {
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// listen reads events, inotify(7): watch, mask, cookie, length, and a name of
// that length.
func (w *watches) listen(inotify *os.File) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := inotify.Read(buffer)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buffer[:n]; len(b) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(b))
			w.wake(id)
			b = b[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):]
		}
		w.mu.Unlock()
	}
}

// wake wakes the followers of one watch; -1 is all, after the kernel's queue
// ran over.
func (w *watches) wake(id int32) {
	for watch, followers := range w.byWatch {
		if watch != id && id != -1 {
			continue
		}
		for c := range followers {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}
