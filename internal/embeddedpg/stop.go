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
	process, err := s.findPostmaster(ctx)
	if process == nil || err != nil {
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

// findPostmaster returns the server's main process, nil when no process of the server lives. What a postmaster that
// was killed leaves behind neither answers nor lives long, and is waited for.
func (s *Server) findPostmaster(ctx context.Context) (*os.Process, error) {
	patience, cancel := context.WithTimeout(ctx, immediateLimit)
	defer cancel()
	for {
		gone, err := tryLock(s.locks.server, syscall.LOCK_EX)
		if gone || err != nil {
			return nil, err
		}
		process, err := s.postmaster(context.WithoutCancel(ctx))
		if err == nil {
			return process, nil
		}
		if pause(patience) != nil {
			return nil, fmt.Errorf("the server is left running: %w", err)
		}
	}
}

// postmaster is our child while that lives, else the process that the pid file names. The file is believed because
// the server answers while we hold the process: it is the one that wrote it.
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
	if err := probe(ctx, s.home.url(adminDatabase)); err != nil && !isAnswer(err) {
		return nil, fmt.Errorf("it does not answer, its pid may be %d: %w", pid, err)
	}
	return process, nil
}

func send(process *os.Process, sig os.Signal) error {
	if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %d: %w", process.Pid, err)
	}
	return nil
}
