package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	// silenceLimit is how long a server may live without answering at all. One that recovers does answer.
	silenceLimit = time.Minute

	// tellAfter is the wait that a person should be told of.
	tellAfter = 3 * time.Second
)

// child is a server that this process has started.
type child struct {
	process *os.Process
	gone    chan struct{} // closed when it has ended and been waited for
	logFrom int64         // where its own lines begin in server.log
}

// bringUp returns when the server answers. The caller holds start.lock.
func (s *Server) bringUp(ctx context.Context, cfg Config) error {
	begin := time.Now()
	heard, told := begin, false
	for {
		dead, err := tryLock(s.locks.server, syscall.LOCK_EX)
		if err != nil {
			return err
		}
		if dead && s.child != nil {
			return s.withLog(errors.New("the server ended before it answered"))
		}
		if dead {
			if err := s.launch(ctx, cfg); err != nil {
				return err
			}
			heard = time.Now()
			continue
		}
		err = probe(ctx, s.home.url(adminDatabase))
		if err == nil {
			s.joined = s.child == nil
			return nil
		}
		if !mayPass(err) {
			return err
		}
		if isAnswer(err) {
			heard = time.Now()
		}
		if time.Since(heard) > silenceLimit {
			return s.withLog(fmt.Errorf("%s is held by a server that has not answered for %s: %w",
				s.home.path(serverLock), silenceLimit, err))
		}
		if !told && (isAnswer(err) || time.Since(begin) > tellAfter) {
			told = true
			s.log.Debug().Err(err).Msg("private Postgres is not ready yet, waiting for it")
		}
		if cause := pause(ctx); cause != nil {
			return s.withLog(fmt.Errorf("the server does not answer (%w): %w", cause, err))
		}
	}
}

// launch starts the server and hands it server.lock, which the caller has taken.
func (s *Server) launch(ctx context.Context, cfg Config) error {
	major, err := s.home.clusterMajor()
	if err != nil {
		return err
	}
	pg, err := findInstallation(ctx, cfg, s.home, major)
	if err != nil {
		return err
	}
	s.log.Debug().Str("bin", pg.dir).Int("major", pg.major).Msg("private Postgres starts")
	if major == 0 {
		if err := s.home.createCluster(ctx, pg, cfg.Path); err != nil {
			return err
		}
	}
	if err := errors.Join(s.home.writeAccess(ctx, cfg.Path), s.home.makeSocketDir()); err != nil {
		return err
	}
	switch removed, err := s.home.clearStale(); {
	case err != nil:
		return err
	case removed:
		s.log.Warn().Msg("private Postgres: removed a postmaster.pid that names no server of ours")
	}
	return s.spawn(pg, cfg.Path)
}

// spawn runs postgres. Its process outlives ctx and this process: it ends by shutdown alone.
func (s *Server) spawn(pg installation, path string) error {
	logFile, err := s.home.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	from, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	next, err := os.OpenFile(s.home.path(serverLock), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	cmd := s.home.as.command(context.Background(), path, pg.program("postgres"), s.home.arguments()...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{s.locks.server}
	if err := cmd.Start(); err != nil {
		_ = next.Close()
		return err
	}
	// The lock belongs to the open file: it is the server's alone once ours is closed.
	_ = s.locks.server.Close()
	s.locks.server = next

	s.child = &child{process: cmd.Process, gone: make(chan struct{}), logFrom: from}
	go func() {
		defer close(s.child.gone)
		if err := cmd.Wait(); err != nil {
			s.log.Warn().Err(err).Str("server_log", s.home.path(logName)).Msg("private Postgres ended badly")
		}
	}()
	return nil
}

// arguments are the settings that a private server depends on, and a few that suit it. They overrule
// data/postgresql.conf; all others may be set there.
func (h home) arguments() []string {
	args := []string{"-D", h.path(dataName)}
	for _, setting := range []string{
		"listen_addresses=",
		"port=" + socketPort,
		"unix_socket_directories=" + h.listenDir(),
		"unix_socket_permissions=0700",
		"hba_file=" + h.path("pg_hba.conf"),
		"ident_file=" + h.path("pg_ident.conf"),
		"logging_collector=off",
		"log_destination=stderr",
		"log_line_prefix=%m [%p] ",
		"cluster_name=executor",
		"max_connections=200",
		"shared_buffers=128MB",
	} {
		args = append(args, "-c", setting)
	}
	return args
}
