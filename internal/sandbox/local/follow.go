package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/sandbox"
)

const (
	chunk    = 64 << 10
	pollMin  = 5 * time.Millisecond
	pollMax  = 100 * time.Millisecond // without events
	watchMax = 2 * time.Second        // with events: against one that is lost
	coalesce = 2 * time.Millisecond   // what is printed byte by byte is read in pieces
)

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// Follow implements sandbox.Conn.
func (c *conn) Follow(ctx context.Context, launch sandbox.Launch, from sandbox.Offsets, sink sandbox.Sink) (sandbox.Exit, error) {
	dir, group := c.dir.run(launch.Name()), c.subgroup(launch.Name())
	f := follower{dir: dir, tree: newHunt(dir, group), sink: sink}
	if err := f.open(from); err != nil {
		return sandbox.Exit{}, c.orGone(err)
	}
	defer f.close()
	guarded, unguard := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() { c.guard(guarded, launch, &f) })
	defer guard.Wait()
	defer unguard()
	events, forget := c.provider.watches.add(f.dir)
	defer forget()

	longest := watchMax
	if events == nil {
		longest = pollMax
	}
	for pause := pollMin; ; {
		end, ended, failed := f.ended(ctx)
		n, err := f.read(ctx) // of a lost process as well
		if err != nil {
			return sandbox.Exit{}, err
		}
		if ended || failed != nil {
			unguard()
			guard.Wait()
			if err := f.over(); err != nil {
				return sandbox.Exit{}, err
			}
		}
		if failed != nil {
			return sandbox.Exit{}, c.orGone(failed)
		}
		if ended {
			return end, nil
		}
		if n > 0 {
			pause = pollMin
			if err := sleep(ctx, coalesce); err != nil {
				return sandbox.Exit{}, err
			}
		}
		select {
		case <-ctx.Done():
			return sandbox.Exit{}, context.Cause(ctx)
		case <-events:
		case <-time.After(pause):
			pause = min(2*pause, longest)
		}
	}
}

// follower reads one run directory. It holds its files open, so that a host
// that is renamed away is still read to its end.
type follower struct {
	dir     string
	tree    *hunt
	lock    *os.File
	streams [2]stream
	given   given
	sink    sandbox.Sink
}

type stream struct {
	name   sandbox.Stream
	file   *os.File
	offset int64
	given  int64 // how much of it, from its beginning, was given back
	keeps  bool  // nothing can be given back
}

func (f *follower) open(from sandbox.Offsets) (err error) {
	f.streams = [2]stream{{name: sandbox.Stdout, offset: from.Stdout}, {name: sandbox.Stderr, offset: from.Stderr}}
	defer func() {
		if err == nil {
			return
		}
		f.close()
		if errors.Is(err, fs.ErrNotExist) {
			err = lost(err) // never started
		}
		err = fault("follow process", err)
	}()
	if f.lock, err = os.Open(filepath.Join(f.dir, runLock)); err != nil {
		return err
	}
	if f.given, err = openGiven(f.dir); err != nil {
		return err
	}
	for i, name := range []string{sandbox.RunStdout, sandbox.RunStderr} {
		s := &f.streams[i]
		if s.file, err = os.OpenFile(filepath.Join(f.dir, name), os.O_RDWR, 0); err != nil {
			return err
		}
		if s.given, err = f.given.get(i); err != nil {
			return err
		}
		if s.offset < s.given {
			return sandbox.NotKept(s.name, s.given)
		}
	}
	return nil
}

func (f *follower) close() {
	f.lock.Close()
	f.given.Close()
	for _, s := range f.streams {
		s.file.Close()
	}
}

// ended says how the command ended, after nothing of its tree is left: then
// what is in the files is all there will be.
func (f *follower) ended(ctx context.Context) (sandbox.Exit, bool, error) {
	content, err := os.ReadFile(filepath.Join(f.dir, sandbox.RunExit))
	if errors.Is(err, fs.ErrNotExist) {
		if supervised, err := f.supervised(); supervised || err != nil {
			return sandbox.Exit{}, false, err
		}
		// It may have ended between the two looks.
		if content, err = os.ReadFile(filepath.Join(f.dir, sandbox.RunExit)); errors.Is(err, fs.ErrNotExist) {
			return sandbox.Exit{}, false, lost(errors.New("the supervisor is gone and left no exit status"))
		}
	}
	if err != nil {
		return sandbox.Exit{}, false, fault("read exit status", err)
	}
	end, noEnd := sandbox.ParseEnd(content)
	if !end.Alone {
		if err := f.tree.end(ctx); err != nil {
			return sandbox.Exit{}, false, err
		}
	}
	if noEnd != nil {
		return sandbox.Exit{}, false, unseen("follow process", noEnd)
	}
	if oom := outOfMemory("follow process", end.Exit, f.tree.group); oom != nil {
		return sandbox.Exit{}, false, oom
	}
	if full := end.DiskFull(); full != nil {
		return sandbox.Exit{}, false, full
	}
	return end.Exit, true, nil
}

// supervised reports whether the supervisor lives: it holds the lock.
func (f *follower) supervised() (bool, error) {
	free, err := tryLock(f.lock, unix.LOCK_SH)
	if err != nil {
		return false, fault("look at the supervisor", err)
	}
	if free {
		_ = unix.Flock(int(f.lock.Fd()), unix.LOCK_UN)
	}
	return !free, nil
}

// read hands on what is there, the streams in turns, and returns how much.
func (f *follower) read(ctx context.Context) (int, error) {
	buffer := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buffer)
	for total := 0; ; {
		before := total
		for i := range f.streams {
			if ctx.Err() != nil {
				return total, context.Cause(ctx)
			}
			s := &f.streams[i]
			n, err := s.file.ReadAt(buffer[:], s.offset)
			if err != nil && !errors.Is(err, io.EOF) {
				return total, fault("read "+string(s.name), err)
			}
			if n == 0 {
				continue
			}
			if err := f.sink(s.name, s.offset, buffer[:n]); err != nil {
				return total, err
			}
			s.offset += int64(n)
			f.giveBack(i)
			total += n
		}
		if total == before {
			return total, nil
		}
	}
}
