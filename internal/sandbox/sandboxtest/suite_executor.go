package sandboxtest

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"executor/internal/sandbox"
)

var executorTests = map[string]func(*testing.T, Subject){
	// An executor is killed with its whole session, in the middle of everything,
	// and another process takes over.
	"killed": func(t *testing.T, s Subject) {
		spec := sandbox.HostSpec{Key: newKey(), RunID: t.Name()}
		content, err := json.Marshal(task{World: s.World, Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		executor := exec.Command(os.Args[0])
		executor.Env = append(os.Environ(), executorTask+"="+string(content))
		executor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		executor.Stderr = os.Stderr
		out, err := executor.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := executor.Start(); err != nil {
			t.Fatal(err)
		}
		id, _ := bufio.NewReader(out).ReadString('\n')
		if err := syscall.Kill(-executor.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		_ = executor.Wait()

		p := s.Open(t)
		host, err := p.Create(soon(t), spec)
		if err != nil {
			t.Fatal("create:", err)
		}
		t.Cleanup(func() { removeSoon(t, p, host) })
		if host.ID != strings.TrimSpace(id) {
			t.Fatalf("got host %s, and the executor had %q", host.ID, id)
		}
		b := &box{T: t, subject: s, provider: p, host: host}
		b.dial(p)
		if p := b.start(1, shell(waits)); !p.Adopted {
			t.Error("started again")
		}
		b.follow(2, sandbox.Offsets{}).until("ready\n")
		b.stop(2, patience)
		if got := b.follow(2, sandbox.Offsets{}).end(); got.Signal != "SIGTERM" {
			t.Errorf("the stopped one: %+v", got)
		}
		rest := b.follow(1, sandbox.Offsets{Stdout: int64(len("ready\n"))})
		b.sh("echo >go")
		if got := rest.end(); got.Code != 3 || rest.stream(sandbox.Stdout) != "over\n" {
			t.Errorf("%+v, %q", got, rest.stream(sandbox.Stdout))
		}
		if out := b.sh("cat file"); out != "old\n" {
			t.Errorf("half an upload is there: %.100q", out)
		}
	},
}
