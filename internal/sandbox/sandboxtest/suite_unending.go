package sandboxtest

import (
	"context"
	"errors"
	"io"
	"time"

	"executor/internal/sandbox"
)

// unending are operations that last until they are interrupted.
var unending = []operation{
	{
		name:  "exec",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Exec },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.begin()
			_, err := box.Exec(ctx, u.holding(stubborn["in another session"]), sandbox.Stdio{})
			return err
		},
		after: func(u *user) { u.allDead() },
	},
	{
		name:  "exec with an input that never comes",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Exec },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			never, w := io.Pipe()
			defer w.Close()
			u.begin()
			_, err := box.Exec(ctx, u.holding("cat"), sandbox.Stdio{In: never})
			return err
		},
		after: func(u *user) { u.allDead() },
	},
	{
		name:  "upload",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Upload },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.begin()
			return box.Upload(ctx, "file", 0o600, endless(func() { time.Sleep(time.Millisecond) }))
		},
		after: (*user).noHalfFile,
	},
	{
		name:  "upload of what never comes",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Upload },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			never, w := io.Pipe()
			defer w.Close()
			u.begin()
			return box.Upload(ctx, "file", 0o600, never)
		},
		after: (*user).noHalfFile,
	},
	{
		name:  "download that nobody reads on",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Download },
		do: func(ctx context.Context, u *user) error {
			u.sh("[ -s bigger ] || head -c 8388608 /dev/zero >bigger")
			box := u.open()
			u.begin()
			file, err := box.Download(ctx, "bigger")
			if err != nil {
				return err
			}
			defer file.Close()
			for err == nil {
				_, err = file.Read(make([]byte, 4096))
				time.Sleep(time.Millisecond) // in seconds it is not through
			}
			if err == io.EOF {
				return errors.New("all of it was read")
			}
			return err
		},
	},
}

// lasting are unending too, and of a process that lasts.
var lasting = []operation{
	{
		name: "follow",
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.n++
			u.start(u.n, u.holding("echo ready; touch ready; exec sleep 300"))
			u.sh("until [ -e ready ]; do sleep 0.01; done; rm ready")
			u.running = u.count()
			u.begin()
			_, err := box.Follow(ctx, u.launch(u.n), sandbox.Offsets{}, discard)
			return err
		},
		// Nobody follows any more, and the process has not noticed.
		after: func(u *user) {
			u.noMoreThan(u.running)
			u.follow(u.n, sandbox.Offsets{}).until("ready")
			u.stop(u.n, 0)
			if got := u.follow(u.n, sandbox.Offsets{}).end(); got.Signal != "SIGKILL" {
				u.Errorf("before it was stopped it ended: %+v", got)
			}
			u.allDead()
		},
	},
	{
		name: "stop within its grace",
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.n++
			u.start(u.n, u.holding(stubborn["TERM is ignored"]))
			u.follow(u.n, sandbox.Offsets{}).until("ready")
			u.begin()
			return box.Stop(ctx, u.launch(u.n), 10*patience)
		},
		after: func(u *user) {
			if u.free() {
				u.Error("it was killed within its grace")
			}
			u.stop(u.n, 0)
			u.allDead()
		},
	},
}

func attach(ctx context.Context, u *user) error {
	box, err := u.client.Attach(ctx, u.ledger, u.entry)
	return closed(box, err)
}

func closed(box *sandbox.Sandbox, err error) error {
	if err == nil {
		_ = box.Close()
	}
	return err
}

func discard(sandbox.Stream, int64, []byte) error { return nil }
