package embeddedpg

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"
)

const (
	dataName = "data"

	// systemDir stands in for directories that root can reach and the service user cannot.
	systemDir = "/var/lib/executor"
)

// home is the directory of one server and the account that runs it.
type home struct {
	dir string // absolute, links resolved: the locks and the socket's name depend on it
	as  account
}

func (h home) path(name string) string { return filepath.Join(h.dir, name) }

// openHome settles where the home is, creates it, and makes sure that the account can reach it.
func openHome(wanted string, log zerolog.Logger) (home, error) {
	if wanted == "" {
		return home{}, errors.New("no data directory given")
	}
	dir, err := resolve(wanted)
	if err != nil {
		return home{}, err
	}
	as, err := accountFor(dir)
	if err != nil {
		return home{}, err
	}
	if as.borrowed {
		if closed := as.closedAt(filepath.Dir(dir)); closed != "" {
			wanted := dir
			dir = filepath.Join(systemDir, "postgres-"+key(wanted))
			log.Info().Str("wanted", wanted).Str("postgres_dir", dir).Str("closed", closed).Msg(
				"private Postgres moves: root cannot run it, and the user that can may not enter the wanted directory")
			if as, err = accountFor(dir); err != nil {
				return home{}, err
			}
		}
	}
	h := home{dir: dir, as: as}
	if err := h.create(); err != nil {
		return home{}, err
	}
	if closed := as.closedAt(dir); closed != "" {
		return home{}, fmt.Errorf("the user that runs Postgres (uid %d) may not enter %s", as.uid, closed)
	}
	return h, nil
}

// create makes the home. A directory that exists has to be empty or a home already: its mode and owner change, and
// that is not to happen to a directory full of other things because of a slip in a setting.
func (h home) create() error {
	if err := makeParents(filepath.Dir(h.dir), h.as); err != nil {
		return err
	}
	if err := os.Mkdir(h.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	isHome := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == startLock })
	if len(entries) > 0 && !isHome {
		return fmt.Errorf("%s holds other files: give a new or empty directory", h.dir)
	}
	if !h.as.borrowed {
		return nil
	}
	info, err := os.Stat(h.dir)
	if err != nil {
		return err
	}
	if uid, _ := owner(info); uid != 0 {
		return fmt.Errorf("%s belongs to uid %d: run as that user, or give root a directory of its own", h.dir, uid)
	}
	return errors.Join(os.Chown(h.dir, 0, h.as.gid), os.Chmod(h.dir, 0o710))
}

// makeParents is MkdirAll. What it makes for another account that one can pass through, whatever root's umask.
func makeParents(dir string, as account) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeParents(filepath.Dir(dir), as); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if as.borrowed {
		return os.Chmod(dir, 0o711)
	}
	return nil
}

// resolve makes a path absolute and resolves the links in the part of it that exists.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for {
		if _, err := os.Lstat(path); err == nil || path == filepath.Dir(path) {
			break
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Join(path, rest), nil
}

// key names a path in a directory that is shared with others.
func key(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:6])
}
