package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"executor/internal/sandbox"
)

// guardPause is between two looks at the ceiling of package sandbox.
const guardPause = 50 * time.Millisecond

// runGiven is a file of numbers that are overwritten in place, which takes no
// space on a disk that is full.
const runGiven = "given"

const (
	givenWidth = 20
	givenOver  = 2 // after those of the streams: 1 when the ceiling was passed
)

var givenNothing = []byte(strings.Repeat(strings.Repeat("0", givenWidth)+"\n", 3))

type given struct{ *os.File }

func openGiven(dir string) (given, error) {
	file, err := os.OpenFile(filepath.Join(dir, runGiven), os.O_RDWR|os.O_CREATE, 0o600)
	return given{file}, err
}

func (g given) get(i int) (int64, error) {
	text := make([]byte, givenWidth)
	n, err := g.ReadAt(text, int64(i)*(givenWidth+1))
	if n == 0 && errors.Is(err, io.EOF) {
		return 0, nil // nothing was written down yet
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

func (g given) set(i int, n int64) error {
	_, err := fmt.Fprintf(io.NewOffsetWriter(g, int64(i)*(givenWidth+1)), "%0*d\n", givenWidth, n)
	return err
}

// giveBack makes a hole of what is far behind. That it may fail is nothing to a
// follower: the ceiling holds all the same.
func (f *follower) giveBack(i int) {
	s := &f.streams[i]
	upTo := sandbox.GiveBack(s.offset, s.given)
	if upTo == s.given || s.keeps {
		return
	}
	before := s.given
	// First, so that no follower takes a hole for output.
	err := f.given.set(i, upTo)
	if err == nil {
		s.given = upTo
		err = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, upTo)
	}
	if err != nil {
		s.keeps, s.given = true, before
		_ = f.given.set(i, before)
	}
}

// over is the fault of a process that the guard has found above the ceiling.
func (f *follower) over() error {
	marked, err := f.given.get(givenOver)
	if err != nil || marked == 0 {
		return fault("look at the output", err)
	}
	return sandbox.OverCeiling()
}

// exceeds reports whether the process is above the ceiling, or was found to be.
func (f *follower) exceeds(ceiling int64) (bool, error) {
	if marked, err := f.given.get(givenOver); marked > 0 || err != nil {
		return marked > 0, err
	}
	for i := range f.streams {
		info, err := f.streams[i].file.Stat()
		if err != nil {
			return false, err
		}
		back, err := f.given.get(i)
		if err != nil {
			return false, err
		}
		if info.Size()-back > ceiling {
			// What has ended prints no more.
			_, err := os.Stat(filepath.Join(f.dir, sandbox.RunExit))
			return errors.Is(err, fs.ErrNotExist), nil
		}
	}
	return false, nil
}

// guard stops the process when it is above the ceiling. It ends then, and with
// ctx.
func (c *conn) guard(ctx context.Context, launch sandbox.Launch, f *follower) {
	events, forget := c.provider.watches.add(f.dir)
	defer forget()
	longest := watchMax
	if events == nil {
		longest = pollMax
	}
	for {
		exceeds, err := f.exceeds(c.provider.ceiling)
		if exceeds {
			if err = f.given.set(givenOver, 1); err == nil {
				err = c.Stop(ctx, launch, 0)
			}
			if err == nil {
				return
			}
		}
		if err != nil && ctx.Err() == nil {
			c.provider.log.Warn().Err(err).Str("launch", launch.Name()).Msg("the ceiling of its output is not kept")
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-time.After(longest):
		}
		if sleep(ctx, guardPause) != nil {
			return
		}
	}
}
