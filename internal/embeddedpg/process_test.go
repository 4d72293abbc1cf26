package embeddedpg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
)

// process is another process that uses a server. It says what happens on its standard output, as JSON, and stops when
// its standard input ends.
type process struct {
	cmd    *exec.Cmd
	events *json.Decoder
	leave  func()
}

type event struct {
	Joined  bool
	URL     string
	Answer  string // of a query made on SIGINT
	Stopped bool
	Err     string
}

// newProcess runs it in a process group of its own, with an environment of nothing but env.
func newProcess(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{userDir + "=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	u := &process{cmd: cmd, events: json.NewDecoder(stdout), leave: func() { _ = stdin.Close() }}
	t.Cleanup(func() {
		u.leave()
		_ = cmd.Wait()
	})
	return u
}

func (u *process) next(t *testing.T) event {
	t.Helper()
	var e event
	check(t, u.events.Decode(&e))
	if e.Err != "" {
		t.Fatal(e.Err)
	}
	return e
}

// kill is kill -9.
func (u *process) kill(t *testing.T) {
	t.Helper()
	check(t, u.cmd.Process.Kill())
	_ = u.cmd.Wait()
}

func (u *process) signalGroup(t *testing.T, sig syscall.Signal) {
	t.Helper()
	check(t, syscall.Kill(-u.cmd.Process.Pid, sig))
}

func beUser(dir string) {
	say := func(e event, err error) {
		if err != nil {
			e.Err = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
			panic(err)
		}
		if err != nil {
			os.Exit(1)
		}
	}
	if mask, err := strconv.ParseInt(os.Getenv(userMask), 8, 0); err == nil {
		syscall.Umask(int(mask))
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)

	s, err := Start(context.Background(), Config{DataDir: dir, Path: "/usr/bin:/bin"})
	if err != nil {
		say(event{}, err)
	}
	say(event{Joined: s.Joined(), URL: s.URL()}, nil)
	go func() {
		for range interrupts {
			answer, err := tryQuery(s.URL(), "SELECT 'alive'")
			say(event{Answer: answer}, err)
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Fprintln(os.Stderr, "unexpected input:", in.Text())
	}
	say(event{Stopped: true}, s.Stop(context.Background()))
}
