package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

func ceiling(t *testing.T, root string, mode local.Mode, bytes int64) *local.Provider {
	t.Helper()
	cfg := config(root, mode)
	cfg.OutputCeiling = bytes
	p, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// onDisk is how much space a file takes, and its size.
func onDisk(t *testing.T, file string) (space, size int64) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512, info.Size()
}

// K5-14: output much larger than its ceiling passes through, while somebody
// reads it; of what was read long ago no space is taken, and a later follower
// starts where it has stored.
func TestSpaceIsGivenBack(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, ceiling(t, root, mode, 128<<20), spec)
		const total, piece = 200 << 20, 10 << 20
		// It waits for its reader after each piece, as busy as the machine may be.
		start(t, conn, 1, shell(`for i in $(seq 20); do
			[ $i -le 10 ] && c=x || c=y
			head -c 10M /dev/zero | tr '\0' $c
			until [ -e read.$i ]; do sleep 0.005; done
		done`))
		work := filepath.Join(root, host.ID, "work")
		stop := errors.New("stop")
		next := int64(0)
		sink := func(until int64) sandbox.Sink {
			return func(_ sandbox.Stream, offset int64, data []byte) error {
				want := byte('x')
				if offset >= total/2 {
					want = 'y'
				}
				if offset != next || data[0] != want {
					t.Errorf("at %d: %q, want offset %d", offset, data[0], next)
				}
				before := next / piece
				next += int64(len(data))
				for i := before + 1; i <= next/piece; i++ {
					if err := os.WriteFile(filepath.Join(work, fmt.Sprint("read.", i)), nil, 0o600); err != nil {
						return err
					}
				}
				if next >= until {
					return stop
				}
				return nil
			}
		}
		if _, err := conn.Follow(t.Context(), launch(1), sandbox.Offsets{}, sink(total/2)); err != stop {
			t.Fatal(err)
		}
		// The executor died having stored less than it was handed.
		next -= 60 << 20
		exit, err := conn.Follow(t.Context(), launch(1), sandbox.Offsets{Stdout: next}, sink(total+1))
		if err != nil || !exit.Success() || next != total {
			t.Fatalf("%+v, %v, %d bytes", exit, err, next)
		}
		space, size := onDisk(t, filepath.Join(root, host.ID, "run", launch(1).Name(), sandbox.RunStdout))
		if space > 100<<20 || size != total {
			t.Errorf("%d bytes take %d", size, space)
		}
		// A hole is not handed out as output.
		_, err = conn.Follow(t.Context(), launch(1), sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return stop })
		if code(err) != "sandbox_invalid" {
			t.Errorf("from the beginning: %v", err)
		}
		exit, err = conn.Follow(t.Context(), launch(1), sandbox.Offsets{Stdout: total}, sink(0))
		if err != nil || !exit.Success() {
			t.Errorf("from the end: %+v, %v", exit, err)
		}
	})
}

// A process that prints faster than anybody takes it is stopped, while the sink
// blocks, and every follower is told so.
func TestCeilingOfOutput(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, ceiling(t, root, mode, 4<<20), spec)
		start(t, conn, 1, shell("(setsid sleep 300 &); trap '' TERM; while :; do head -c 1M /dev/zero; sleep 0.01; done >&2"))
		blocked, release := context.WithTimeout(t.Context(), time.Minute)
		defer release()
		var got int64
		_, err := conn.Follow(t.Context(), launch(1), sandbox.Offsets{}, func(_ sandbox.Stream, _ int64, data []byte) error {
			got += int64(len(data))
			for blocked.Err() == nil {
				if left, err := local.Left(filepath.Join(root, host.ID)); left == 0 && err == nil {
					release()
				}
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		if blocked.Err() != context.Canceled {
			t.Error("it was not stopped")
		}
		_, size := onDisk(t, filepath.Join(root, host.ID, "run", launch(1).Name(), sandbox.RunStderr))
		if got != size || size < 4<<20 || size > 512<<20 {
			t.Errorf("%d of %d bytes were handed over", got, size)
		}
		_, again := conn.Follow(t.Context(), launch(1), sandbox.Offsets{Stderr: size}, nil)
		for _, err := range []error{err, again} {
			if f := faults.Of(err); code(err) != "sandbox_disk_full" || !f.Permanent || f.Outcome != faults.Done {
				t.Errorf("got %v", err)
			}
		}
	})
}

// What has ended by itself keeps its end, however much it has printed.
func TestCeilingAfterTheEnd(t *testing.T) {
	modes(t, func(t *testing.T, root string, mode local.Mode) {
		conn, host := dialHost(t, ceiling(t, root, mode, 1<<20), spec)
		start(t, conn, 1, shell("head -c 3M /dev/zero; exit 5"))
		exit := filepath.Join(root, host.ID, "run", launch(1).Name(), sandbox.RunExit)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(exit); err == nil {
				break
			}
		}
		if out, exit, err := follow(t, conn, 1); err != nil || exit.Code != 5 || len(out) != 3<<20 {
			t.Errorf("%d bytes, %+v, %v", len(out), exit, err)
		}
	})
}
