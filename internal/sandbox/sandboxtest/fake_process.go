package sandboxtest

import (
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Proc is what a started process does. The zero value exits with 0 at once
// and says nothing.
type Proc struct {
	Stdout, Stderr string            // all of it, at the start
	Files          map[string]string // what it leaves in the working directory
	Exit           int
	Signal         string // such as "SIGKILL"; Exit is then 128+n where it is 0

	Lost   bool            // it ends, and nobody can read how
	Hang   bool            // it runs until it is stopped
	Until  <-chan struct{} // it runs until this is closed, or it is stopped
	OnStop *sandbox.Exit   // how it ends when it is stopped; nil: by SIGTERM
}

// Script says what the starts of a step's process do, one Proc a start; the
// last one is repeated. The name of a member's process is "step+member".
func (f *Fake) Script(name string, procs ...Proc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.scripts[name]
	if s == nil {
		s = &script{}
		f.scripts[name] = s
	}
	s.procs = append(s.procs, procs...)
}

type script struct {
	procs []Proc
	next  int
}

// Started returns the launch of every process that was really started, in
// order: a Start that adopts adds none.
func (f *Fake) Started() []sandbox.Launch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sandbox.Launch(nil), f.starts...)
}

func (f *Fake) start(h *host, launch sandbox.Launch) *process {
	for _, other := range f.hosts {
		for name, p := range other.processes {
			if p.alive() && sameStep(p.launch, launch) {
				f.misuse = append(f.misuse, fmt.Sprintf("%s started in %s while %s lives in %s", launch.Name(), h.ID, name, other.ID))
			}
		}
	}
	f.starts = append(f.starts, launch)
	p := &process{Proc: f.proc(scriptName(launch)), launch: launch, startedAt: time.Now(), stopped: make(chan struct{})}
	for path, content := range p.Files {
		h.files[filepath.Clean(path)] = []byte(content)
	}
	h.processes[launch.Name()] = p
	return p
}

func (f *Fake) proc(name string) Proc {
	s := f.scripts[name]
	if s == nil {
		return Proc{}
	}
	p := s.procs[min(s.next, len(s.procs)-1)]
	s.next++
	return p
}

func scriptName(l sandbox.Launch) string {
	if l.Member == "" {
		return l.Step
	}
	return l.Step + "+" + l.Member
}

func sameStep(a, b sandbox.Launch) bool {
	a.N, b.N = 0, 0
	return a == b
}

// process is a started Proc.
type process struct {
	Proc
	launch    sandbox.Launch
	startedAt time.Time
	stopped   chan struct{}
}

var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// until is closed when the process ends by itself; nil: never.
func (p *process) until() <-chan struct{} {
	switch {
	case p.Hang:
		return nil
	case p.Until != nil:
		return p.Until
	}
	return atOnce
}

func (p *process) alive() bool {
	select {
	case <-p.stopped:
		return false
	case <-p.until():
		return false
	default:
		return true
	}
}

func (p *process) stop() {
	if p.alive() {
		close(p.stopped)
	}
}

func (p *process) ending() (sandbox.Exit, error) {
	select {
	case <-p.stopped:
		if p.OnStop != nil {
			return *p.OnStop, nil
		}
		return sandbox.Exit{Code: 128 + int(syscall.SIGTERM), Signal: "SIGTERM"}, nil
	default:
	}
	if p.Lost {
		return sandbox.Exit{}, faults.Errorf(faults.SandboxLost, "%s left no exit status", p.launch.Name())
	}
	exit := sandbox.Exit{Code: p.Exit, Signal: p.Signal}
	if exit.Code == 0 {
		exit.Code = signalCodes[p.Signal]
	}
	return exit, nil
}

var signalCodes = map[string]int{"SIGHUP": 129, "SIGINT": 130, "SIGABRT": 134, "SIGKILL": 137, "SIGSEGV": 139, "SIGPIPE": 141, "SIGTERM": 143}
