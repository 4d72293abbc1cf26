package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// usualDirs are where packages put Postgres.
var usualDirs = []string{
	"/usr/lib/postgresql/*/bin",  // Debian, Ubuntu
	"/usr/pgsql-*/bin",           // PGDG on Fedora, RHEL
	"/usr/libexec/postgresql*",   // Alpine
	"/usr/lib*/postgresql-*/bin", // Gentoo
	"/usr/lib/postgresql*/bin",   // SUSE
	"/usr/local/pgsql/bin",       // built from source
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

const installAdvice = "install PostgreSQL " +
	"(Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql@17)"

// search says where to look for an installation, and who has to be able to run it.
type search struct {
	as     account
	usual  []string // patterns
	path   string
	binDir string
	cache  string
	notes  []string // what was found and is no good
}

// findInstallation returns programs of the cluster's major version, or for a new cluster (0) the newest that one of
// the places has. Package directories come before the PATH: what is on the PATH may be a wrapper.
func findInstallation(ctx context.Context, cfg Config, h home, major int) (installation, error) {
	s := &search{as: h.as, usual: usualDirs, path: cfg.Path, binDir: cfg.BinDir}
	if cfg.CacheDir != "" {
		cache, err := h.as.cacheDir(cfg.CacheDir)
		if err != nil {
			return installation{}, err
		}
		s.cache = cache
	}
	found, err := s.find(ctx, major, cfg.Repository)
	if err != nil && major != 0 {
		err = fmt.Errorf("the cluster %s was made by PostgreSQL %d and runs with no other version; "+
			"install PostgreSQL %d, or move the cluster away to begin with an empty one: %w", h.path(dataName), major, major, err)
	}
	return found, err
}

func (s *search) find(ctx context.Context, major int, repository string) (installation, error) {
	for _, dirs := range s.places(ctx) {
		var fit []installation
		for _, dir := range dirs {
			found, err := s.inspect(ctx, dir)
			switch {
			case err != nil:
				s.notes = append(s.notes, fmt.Sprintf("%s: %v", dir, err))
			case !found.fits(major):
				s.notes = append(s.notes, fmt.Sprintf("%s: is PostgreSQL %d", dir, found.major))
			default:
				fit = append(fit, found)
			}
		}
		if len(fit) > 0 {
			return slices.MaxFunc(fit, func(a, b installation) int { return a.major - b.major }), nil
		}
	}
	wanted := fmt.Sprintf("PostgreSQL %d", major)
	if major == 0 {
		wanted = fmt.Sprintf("PostgreSQL %d or newer", oldest)
	}
	err := fmt.Errorf("found no %s with %s in %s%s; %s", wanted, strings.Join(programs, ", "), s.looked(),
		notes(s.notes), installAdvice)
	if s.cache == "" || s.binDir != "" {
		return installation{}, err
	}
	found, downloadErr := s.download(ctx, major, repository)
	if downloadErr != nil {
		return installation{}, errors.Join(err, fmt.Errorf("and it could not be downloaded: %w", downloadErr))
	}
	return found, nil
}

// places lists the directories to look into, the better ones first. Only those with a postgres in them are listed,
// but for the one that the caller named.
func (s *search) places(ctx context.Context) [][]string {
	if s.binDir != "" {
		return [][]string{{s.binDir}}
	}
	var usual, configured, cached []string
	for _, pattern := range s.usual {
		dirs, _ := filepath.Glob(pattern)
		usual = append(usual, dirs...)
	}
	if program, err := lookPath(s.path, "pg_config"); err == nil {
		if out, err := s.run(ctx, program, "--bindir"); err == nil {
			configured = []string{out}
		}
	}
	if s.cache != "" {
		cached, _ = filepath.Glob(filepath.Join(globQuote(s.cache), "postgres-*", "bin"))
	}
	places := [][]string{usual, configured, pathDirs(s.path), cached}
	for i := range places {
		places[i] = slices.DeleteFunc(places[i], func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, "postgres"))
			return err != nil
		})
	}
	return places
}

func (s *search) looked() string {
	if s.binDir != "" {
		return s.binDir
	}
	return strings.Join(s.usual, ", ") + ", pg_config --bindir, the PATH (" + s.path + ")"
}

func notes(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return " (" + strings.Join(notes, "; ") + ")"
}

// pathDirs are the directories of a PATH; relative ones are left out, they mean something else for every caller.
func pathDirs(path string) []string {
	return slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return !filepath.IsAbs(dir) })
}

func lookPath(path, name string) (string, error) {
	for _, dir := range pathDirs(path) {
		program := filepath.Join(dir, name)
		if info, err := os.Stat(program); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return program, nil
		}
	}
	return "", fmt.Errorf("no %s on the PATH", name)
}
