package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// newest is the major version that a new cluster gets when Postgres has to be downloaded.
const newest = 18

// downloads are the versions that can be had.
var downloads = map[int]embeddedpostgres.PostgresVersion{
	14: embeddedpostgres.V14,
	15: embeddedpostgres.V15,
	16: embeddedpostgres.V16,
	17: embeddedpostgres.V17,
	18: embeddedpostgres.V18,
}

// cacheDir is where downloads go: the wanted directory, or another that the account can reach.
func (a account) cacheDir(wanted string) (string, error) {
	dir, err := resolve(wanted)
	if err != nil {
		return "", err
	}
	if a.borrowed && a.closedAt(dir) != "" {
		dir = filepath.Join(systemDir, "cache-"+key(dir))
	}
	return dir, nil
}

// download fetches programs of the major version (0: the newest) into the cache, or finds that another process has
// done so meanwhile. The library that does the work knows no context: when ctx ends, download returns, and what was
// begun is cleaned up in the background, or by the next download.
func (s *search) download(ctx context.Context, major int, repository string) (installation, error) {
	if major == 0 {
		major = newest
	}
	version, ok := downloads[major]
	if !ok {
		return installation{}, fmt.Errorf("PostgreSQL %d is not on offer", major)
	}
	type result struct {
		installation
		err error
	}
	done := make(chan result, 1)
	go func() {
		found, err := s.unpackOnce(ctx, version, repository)
		done <- result{found, err}
	}()
	select {
	case r := <-done:
		return r.installation, r.err
	case <-ctx.Done():
		return installation{}, context.Cause(ctx)
	}
}

// unpackOnce makes the cache's directory for a version: under a lock, beside its final place, and renamed when its
// programs have been seen to run. A directory that has the name is therefore complete.
func (s *search) unpackOnce(ctx context.Context, version embeddedpostgres.PostgresVersion, repository string) (installation, error) {
	if err := makeParents(s.cache, s.as); err != nil {
		return installation{}, err
	}
	lock, err := os.OpenFile(filepath.Join(s.cache, "unpack.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return installation{}, err
	}
	defer func() { _ = lock.Close() }()
	if err := waitLock(ctx, lock, syscall.LOCK_EX); err != nil {
		return installation{}, err
	}

	final := filepath.Join(s.cache, "postgres-"+string(version))
	if _, err := os.Stat(final); err == nil {
		return s.inspect(ctx, filepath.Join(final, "bin"))
	}
	leftovers, _ := filepath.Glob(filepath.Join(globQuote(s.cache), "unpack-*"))
	for _, dir := range leftovers {
		_ = os.RemoveAll(dir)
	}
	work, err := os.MkdirTemp(s.cache, "unpack-")
	if err != nil {
		return installation{}, err
	}
	defer func() { _ = os.RemoveAll(work) }()

	unpacked := filepath.Join(work, "postgres")
	fetchErr := fetch(work, unpacked, version, repository)
	if _, err := os.Stat(filepath.Join(unpacked, "bin", "postgres")); err != nil {
		return installation{}, errors.Join(fetchErr, err)
	}
	if err := errors.Join(os.Chmod(work, 0o755), openToAll(unpacked)); err != nil {
		return installation{}, err
	}
	if _, err := s.inspect(ctx, filepath.Join(unpacked, "bin")); err != nil {
		return installation{}, err
	}
	if err := os.Rename(unpacked, final); err != nil {
		return installation{}, err
	}
	return s.inspect(ctx, filepath.Join(final, "bin"))
}

// fetch has the library download and unpack a version. The library cannot do only that, so it is given a data
// directory that it takes for a cluster and that pg_ctl refuses: it always ends in an error, and whether the
// programs are there has to be looked at.
func fetch(work, unpacked string, version embeddedpostgres.PostgresVersion, repository string) error {
	data := filepath.Join(work, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(version), 0o600); err != nil {
		return err
	}
	config := embeddedpostgres.DefaultConfig().
		Version(version).
		Port(0).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(work, "runtime")).
		DataPath(data).
		Logger(io.Discard)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	server := embeddedpostgres.NewDatabase(config)
	err := server.Start()
	if err == nil {
		err = server.Stop()
	}
	return err
}

// openToAll lets every user read what was unpacked, whatever our umask.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
