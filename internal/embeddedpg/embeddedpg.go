package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	// startLimit bounds Start when its context does not: crash recovery of a large cluster takes a while, and a
	// download does.
	startLimit = 10 * time.Minute

	// turnLimit is how long Stop waits for start.lock. Whoever holds it longer is a user himself, and stops the
	// server when he leaves.
	turnLimit = 2 * time.Second

	// immediateLimit is how long an immediate shutdown may take. Postgres kills what is left after 5 s.
	immediateLimit = 10 * time.Second
)

var errStartLimit = fmt.Errorf("it took longer than %s", startLimit)

// Config says where a private server lives and where its programs come from.
type Config struct {
	// DataDir is the home of the server (see the package's doc). It is created when missing; a directory that
	// holds anything else is refused.
	DataDir string

	// BinDir holds initdb, postgres and pg_ctl. Empty: they are searched for.
	BinDir string

	// Path is the PATH to search, and the one that Postgres gets.
	Path string

	// CacheDir is where Postgres is downloaded to when the machine has none. Empty: never download.
	CacheDir string

	// Repository is the Maven repository to download from. Empty: Maven Central.
	Repository string

	Log zerolog.Logger
}

// Server is one process's use of a private server. Its methods may be called from any goroutine.
type Server struct {
	home   home
	log    zerolog.Logger
	joined bool
	child  *child // nil when joined

	stopping sync.Mutex
	locks    *locks // nil once stopped
}

// Start finds the running server of cfg.DataDir, or starts one, and returns when it answers queries. It makes the
// cluster and the database on first use. When it fails, nothing that it started is left running.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errStartLimit)
	defer cancel()

	h, err := openHome(cfg.DataDir, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("private Postgres: %w", err)
	}
	s := &Server{home: h, log: cfg.Log.With().Str("postgres_dir", h.dir).Logger()}

	if s.locks, err = openLocks(h); err != nil {
		return nil, fmt.Errorf("private Postgres: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("private Postgres in %s: %w", h.dir, errors.Join(err, s.abandon(ctx)))
		}
	}()

	if err := waitLock(ctx, s.locks.start, syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("wait for another start: %w", err)
	}
	defer func() {
		if err == nil {
			err = unlock(s.locks.start)
		}
	}()
	if err := waitLock(ctx, s.locks.users, syscall.LOCK_SH); err != nil {
		return nil, err
	}
	if err := s.bringUp(ctx, cfg); err != nil {
		return nil, err
	}
	if err := ensureDatabase(ctx, h.url(adminDatabase)); err != nil {
		return nil, err
	}
	s.log.Info().Bool("joined", s.joined).Msg("private Postgres is ready")
	return s, nil
}

// URL is the server's address, for pgx and for every tool built on libpq. It holds no secret.
func (s *Server) URL() string { return s.home.url(database) }

// Dir is the server's home: Config.DataDir, or the directory used in its place (see the package's doc).
func (s *Server) Dir() string { return s.home.dir }

// Joined tells whether the server was already running: started by another process that still uses it, or left
// behind by one that was killed.
func (s *Server) Joined() bool { return s.joined }

// Stop ends this process's use of the server, and stops the server when no other process uses it. Open connections
// are cut. When ctx ends before the server has shut down in good order, it is made to stop at once; the next start
// then recovers from its log, and no committed data is lost. Stop may be called twice.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Lock()
	defer s.stopping.Unlock()
	if s.locks == nil {
		return nil
	}
	defer func() {
		s.locks.close()
		s.locks = nil
	}()

	turn, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnLimit)
	defer cancel()
	if err := waitLock(turn, s.locks.start, syscall.LOCK_EX); err != nil {
		s.log.Info().Msg("private Postgres is left to the process that is starting")
		return nil
	}
	last, err := tryLock(s.locks.users, syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("private Postgres in %s: %w", s.home.dir, err)
	}
	if !last {
		s.log.Info().Msg("private Postgres is left to the other processes that use it")
		return nil
	}
	if err := s.shutdown(ctx); err != nil {
		return fmt.Errorf("private Postgres in %s: %w", s.home.dir, err)
	}
	s.log.Info().Msg("private Postgres has stopped")
	return nil
}
