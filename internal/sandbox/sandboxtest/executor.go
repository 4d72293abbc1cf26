package sandboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"executor/internal/sandbox"
)

// What another process is told.
const executorTask = "SANDBOXTEST_EXECUTOR"

type task struct {
	World string
	Spec  sandbox.HostSpec
}

// Executor is the first thing in the TestMain of a provider whose Subject has a
// World. Where Suite has started this process to be another executor, it is
// one from then on, with the provider that open returns, until it is killed.
func Executor(open func(world string) (sandbox.Provider, error)) {
	text := os.Getenv(executorTask)
	if text == "" {
		return
	}
	var what task
	err := json.Unmarshal([]byte(text), &what)
	if err == nil {
		var p sandbox.Provider
		if p, err = open(what.World); err == nil {
			err = live(p, what.Spec)
		}
	}
	fmt.Fprintln(os.Stderr, "the other executor:", err)
	os.Exit(1)
}

// waits is a process that goes on without whoever started it.
const waits = `trap "" HUP; echo ready; read x <go; echo over; exit 3`

// live makes a host, and is in the middle of everything when it says so.
func live(p sandbox.Provider, spec sandbox.HostSpec) error {
	ctx := context.Background()
	host, err := p.Create(ctx, spec)
	if err != nil {
		return err
	}
	conn, err := p.Dial(ctx, host)
	if err != nil {
		return err
	}
	if err := conn.Prepare(ctx); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, shell("mkfifo go; echo old >file"), sandbox.Stdio{}); err != nil {
		return err
	}
	failed, busy := make(chan error), make(chan struct{}, 4)
	for n := 1; n <= 2; n++ {
		launch := sandbox.Launch{RunID: spec.RunID, Step: "step", N: n}
		if _, err := conn.Start(ctx, launch, shell(waits)); err != nil {
			return err
		}
		go func() {
			_, err := conn.Follow(ctx, launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error {
				busy <- struct{}{}
				return nil
			})
			failed <- fmt.Errorf("followed to an end: %w", err)
		}()
	}
	go func() {
		_, err := conn.Exec(ctx, shell(stubborn["in another session"]), sandbox.Stdio{Out: writerFunc(func(b []byte) (int, error) {
			busy <- struct{}{}
			return len(b), nil
		})})
		failed <- fmt.Errorf("a command ended: %w", err)
	}()
	go func() {
		told := false
		failed <- conn.Upload(ctx, "file", 0o600, endless(func() {
			if !told {
				told = true
				busy <- struct{}{}
			}
			select {}
		}))
	}()
	for range cap(busy) {
		select {
		case <-busy:
		case err := <-failed:
			return err
		}
	}
	fmt.Println(host.ID)
	return <-failed
}
