package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// shutdown stops the server, whoever started it. The caller holds start.lock.
func (s *Server) shutdown(ctx context.Context) error {
	gone, err := tryLock(s.locks.server, syscall.LOCK_EX)
	if gone || err != nil {
		return err
	}
	process, err := s.postmaster(ctx)
	if err != nil {
		return err
	}
	if err := send(process, syscall.SIGINT); err != nil { // fast shutdown
		return err
	}
	if waitLock(ctx, s.locks.server, syscall.LOCK_EX) == nil {
		return s.reap()
	}
	s.log.Warn().Msg("private Postgres does not shut down in time, stopping it at once")
	return s.stopNow(ctx, process)
}

// abandon undoes a Start that failed.
func (s *Server) abandon(ctx context.Context) error {
	defer s.locks.close()
	if s.child == nil {
		return nil
	}
	return s.stopNow(ctx, s.child.process)
}

// stopNow is Postgres's immediate shutdown, like a crash.
func (s *Server) stopNow(ctx context.Context, process *os.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), immediateLimit)
	defer cancel()
	if err := send(process, syscall.SIGQUIT); err != nil {
		return err
	}
	if err := waitLock(ctx, s.locks.server, syscall.LOCK_EX); err != nil {
		return fmt.Errorf("the server (pid %d) does not stop: %w", process.Pid, err)
	}
	return s.reap()
}

// reap returns when our child, which has ended, has been waited for.
func (s *Server) reap() error {
	if s.child != nil {
		<-s.child.gone
	}
	return nil
}

// postmaster is the server's main process. A server that is not our child is found by its pid file, which is
// believed because the server answers while we hold the process: it is the one that wrote the file.
func (s *Server) postmaster(ctx context.Context) (*os.Process, error) {
	if s.child != nil {
		select {
		case <-s.child.gone: // another user has started the server since
		default:
			return s.child.process, nil
		}
	}
	text, err := os.ReadFile(filepath.Join(s.home.path(dataName), "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return nil, err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	err = probe(context.WithoutCancel(ctx), s.home.url(adminDatabase))
	if err != nil && !isAnswer(err) {
		return nil, fmt.Errorf("the server does not answer and is left running, pid %d perhaps: %w", pid, err)
	}
	return process, nil
}

func send(process *os.Process, sig os.Signal) error {
	if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %d: %w", process.Pid, err)
	}
	return nil
}
