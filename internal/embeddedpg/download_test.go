package embeddedpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// repository is a Maven repository that has jar for every version of Postgres.
func repository(t *testing.T, jar []byte, asked *atomic.Int32) string {
	t.Helper()
	sum := sha256.Sum256(jar)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			asked.Add(1)
			_, _ = w.Write(jar)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// jarOf packs this machine's own Postgres the way the repository does: a jar with a .txz in it.
func jarOf(t *testing.T) []byte {
	t.Helper()
	dir := newHome(t)
	as, err := accountFor(dir)
	check(t, err)
	pg, err := findInstallation(t.Context(), config(t, dir), home{dir: dir, as: as}, 0)
	check(t, err)

	var packed, jar bytes.Buffer
	archive := tar.NewWriter(&packed)
	for _, name := range programs {
		text, err := os.ReadFile(pg.program(name))
		check(t, err)
		// Closed to others, as after unpacking with a strict umask.
		check(t, archive.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o700, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err = archive.Write(text)
		check(t, err)
	}
	check(t, archive.Close())
	xz := exec.Command("xz", "-0", "-c")
	xz.Stdin, xz.Stderr = &packed, os.Stderr
	txz, err := xz.Output()
	check(t, err)

	files := zip.NewWriter(&jar)
	file, err := files.Create("postgres-linux-x86_64.txz")
	check(t, err)
	_, err = file.Write(txz)
	check(t, err)
	check(t, files.Close())
	return jar.Bytes()
}

// searchIn is a search that finds nothing but what it downloads.
func searchIn(t *testing.T, cache string) *search {
	t.Helper()
	as, err := accountFor(cache)
	check(t, err)
	return &search{as: as, path: "/no/such/bin", usual: []string{"/no/such/dir"}, cache: cache}
}

// Eight processes find an empty cache, and what one left that was killed while it unpacked.
func TestDownloadOnce(t *testing.T) {
	t.Parallel()
	cache := filepath.Join(newHome(t), "cache")
	check(t, os.MkdirAll(filepath.Join(cache, "unpack-killed", "postgres", "bin"), 0o755))
	check(t, os.Chmod(filepath.Dir(cache), 0o711))
	check(t, os.Chmod(cache, 0o711))
	var asked atomic.Int32
	url := repository(t, jarOf(t), &asked)

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			found, err := searchIn(t, cache).find(t.Context(), 0, url)
			if err != nil {
				t.Error(err)
				return
			}
			equal(t, "directory", filepath.Dir(filepath.Dir(found.dir)), cache)
		})
	}
	all.Wait()
	equal(t, "downloads", asked.Load(), 1)
	left, err := filepath.Glob(filepath.Join(cache, "unpack-*"))
	check(t, err)
	equal(t, "left behind", strings.Join(left, " "), "")
}

func TestDownloadThatFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		url   string
		major int
		says  string
	}{
		"no network":      {"http://127.0.0.1:1", 0, "unable to connect to http://127.0.0.1:1"},
		"not a jar":       {repository(t, []byte("<html>"), new(atomic.Int32)), 0, "zip"},
		"no such version": {"http://127.0.0.1:1", 99, "PostgreSQL 99 is not on offer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := filepath.Join(newHome(t), "cache")
			_, err := searchIn(t, cache).find(t.Context(), test.major, test.url)
			wantError(t, err, "found no PostgreSQL", "/no/such/dir", "pg_config --bindir", "apt install postgresql",
				"could not be downloaded", test.says)
			left, err := filepath.Glob(filepath.Join(cache, "*"))
			check(t, err)
			for _, name := range left {
				equal(t, "left in the cache", filepath.Base(name), "unpack.lock")
			}
		})
	}
}

func TestDownloadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel(reason)
		<-hang
	}))
	t.Cleanup(server.Close)
	cache := filepath.Join(newHome(t), "cache")
	s := searchIn(t, cache)
	_, err := s.find(ctx, 0, server.URL)
	if !errors.Is(err, reason) {
		t.Errorf("got %v", err)
	}
	// What was begun ends, and cleans up, by itself.
	close(hang)
	lock, err := os.Open(filepath.Join(cache, "unpack.lock"))
	check(t, err)
	defer func() { _ = lock.Close() }()
	check(t, waitLock(t.Context(), lock, syscall.LOCK_EX))
}

// A cache that the account cannot reach would be of no use.
func TestCacheInAClosedDirectory(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	check(t, os.Chmod(closed, 0o700))
	wanted := filepath.Join(closed, "cache")
	got, err := account{uid: 12345, gid: 12345, borrowed: true}.cacheDir(wanted)
	check(t, err)
	equal(t, "for another account", got, filepath.Join(systemDir, "cache-"+key(wanted)))
	got, err = account{uid: os.Geteuid(), gid: os.Getegid()}.cacheDir(wanted)
	check(t, err)
	equal(t, "for oneself", got, wanted)
}
