package sandboxtest

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"executor/internal/sandbox"
)

// operation is one of a provider's.
type operation struct {
	name    string
	limit   func(*sandbox.Timeouts) *time.Duration // nil: it has none
	endless bool
	// do does it. It calls u.begin where the gate does not.
	do func(ctx context.Context, u *user) error
	// after checks that an interrupted one has left nothing and can be done
	// again.
	after func(u *user)
}

// hostOperations end by themselves, as ordinary ones do.
var hostOperations = []operation{
	{
		name:  "create",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Create },
		do: func(ctx context.Context, u *user) error {
			u.anew()
			box, err := u.client.Acquire(ctx, u.fresh, u.provider.Name(), sandbox.HostSpec{Key: newKey(), RunID: u.Name()})
			return closed(box, err)
		},
		// The next attempt gets the host, and there is no other.
		after: func(u *user) {
			box := u.acquired(u.fresh, u.fresh.Rows()[0].Key)
			if exit, err := box.Exec(u.soon(), shell("true"), sandbox.Stdio{}); err != nil || !exit.Success() {
				u.Errorf("the host is of no use: %+v, %v", exit, err)
			}
			_ = box.Close()
			u.drop(u.fresh)
		},
	},
	{
		name:  "get",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Get },
		do:    attach,
	},
	{
		name:  "list",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.List },
		do:    func(ctx context.Context, u *user) error { _, err := u.client.List(ctx); return err },
	},
	{
		name:  "dial",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Dial },
		do:    attach,
	},
	{
		name:  "prepare",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Prepare },
		do: func(ctx context.Context, u *user) error {
			box, err := u.client.Acquire(ctx, u.ledger, u.provider.Name(), sandbox.HostSpec{Key: u.entry.Key, RunID: u.Name()})
			return closed(box, err)
		},
	},
	{
		name:  "delete",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Delete },
		do: func(ctx context.Context, u *user) error {
			u.anew()
			box := u.acquired(u.fresh, newKey())
			defer box.Close()
			if _, err := box.Start(u.soon(), u.launch(1), shell(stubborn["in another session"])); err != nil {
				return err
			}
			return u.client.Delete(ctx, u.fresh, box.Entry())
		},
		after: func(u *user) { u.drop(u.fresh) },
	},
}

var processOperations = []operation{
	{
		name:  "exec",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Exec },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.begin()
			_, err := box.Exec(ctx, u.holding("(trap '' TERM; setsid sleep 300 &); true"), sandbox.Stdio{})
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
			return box.Upload(ctx, "file", 0o600, strings.NewReader(strings.Repeat("x", 4<<20)))
		},
		after: (*user).noHalfFile,
	},
	{
		name:  "download",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Download },
		do: func(ctx context.Context, u *user) error {
			u.sh("[ -s big ] || head -c 4194304 /dev/zero >big")
			box := u.open()
			u.begin()
			file, err := box.Download(ctx, "big")
			if err != nil {
				return err
			}
			defer file.Close()
			if n, err := io.Copy(io.Discard, file); err != nil || n != 4<<20 {
				return errors.Join(err, io.ErrShortWrite)
			}
			return nil
		},
	},
	{
		name:  "start",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Start },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.n++
			cmd := u.holding("echo x >>count; sleep 300")
			cmd.Stdin = make([]byte, 4<<20)
			u.begin()
			_, err := box.Start(ctx, u.launch(u.n), cmd)
			return err
		},
		// It may have been started. To start it again does not start it twice.
		after: func(u *user) {
			p := u.start(u.n, u.holding("echo x >>count; sleep 300"))
			u.sh("until [ -s count ]; do sleep 0.01; done")
			u.stop(u.n, 0)
			if out := u.sh("flock -n " + u.lockName() + " cat count; rm count"); out != "x\n" {
				u.Errorf("it printed %q and is dead; adopted: %t", out, p.Adopted)
			}
		},
	},
	{
		name:  "stop",
		limit: func(t *sandbox.Timeouts) *time.Duration { return &t.Stop },
		do: func(ctx context.Context, u *user) error {
			box := u.open()
			u.n++
			u.start(u.n, u.holding(stubborn["in another session"]))
			u.follow(u.n, sandbox.Offsets{}).until("ready")
			u.begin()
			return box.Stop(ctx, u.launch(u.n), 0)
		},
		after: func(u *user) {
			u.stop(u.n, 0)
			u.allDead()
		},
	},
}
