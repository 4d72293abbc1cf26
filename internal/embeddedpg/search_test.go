package embeddedpg

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// programsOf makes a directory of programs that say they are of a version.
func programsOf(t *testing.T, dir, version string) string {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	for _, name := range programs {
		script(t, filepath.Join(dir, name), "echo '"+name+" (PostgreSQL) "+version+"'")
	}
	return dir
}

func TestSearch(t *testing.T) {
	t.Parallel()
	root := filepath.Dir(newHome(t))
	dir := func(name string) string { return filepath.Join(root, name) }

	programsOf(t, dir("usual-13/bin"), "13.9")
	programsOf(t, dir("usual-9/bin"), "9.6.24")
	programsOf(t, dir("usual-15/bin"), "15.2 (Debian 15.2-1)")
	programsOf(t, dir("usual-18/bin"), "18beta1")
	programsOf(t, dir("path-16"), "16.1")
	programsOf(t, dir("configured"), "17.0")
	check(t, os.Mkdir(dir("config"), 0o755))
	script(t, dir("config/pg_config"), "echo "+dir("configured"))
	script(t, filepath.Join(programsOf(t, dir("refusing"), "18.1"), "initdb"), "echo 'No version is set' >&2; exit 126")
	script(t, filepath.Join(programsOf(t, dir("mixed"), "18.1"), "initdb"), "echo 'initdb (PostgreSQL) 17.2'")
	script(t, filepath.Join(programsOf(t, dir("chatty"), "18.1"), "postgres"), "echo hello")
	check(t, os.Remove(filepath.Join(programsOf(t, dir("incomplete"), "18.1"), "pg_ctl")))
	bad := dir("refusing") + ":" + dir("mixed") + ":" + dir("chatty") + ":" + dir("incomplete")
	usual := []string{dir("usual-*/bin")}

	for name, test := range map[string]struct {
		search search
		major  int
		want   string
	}{
		"newest of the usual":       {search{usual: usual, path: dir("path-16")}, 0, "usual-18/bin"},
		"the cluster's own":         {search{usual: usual, path: dir("path-16")}, 15, "usual-15/bin"},
		"the cluster's own, old":    {search{usual: usual}, 13, "usual-13/bin"},
		"the cluster's, on PATH":    {search{usual: usual, path: dir("path-16")}, 16, "path-16"},
		"the cluster's, configured": {search{usual: usual, path: dir("path-16") + ":" + dir("config")}, 17, "configured"},
		"PATH past what is broken":  {search{path: bad + ":" + dir("path-16")}, 0, "path-16"},
		"too old":                   {search{usual: []string{dir("usual-13/bin")}, path: dir("path-16")}, 0, "path-16"},
		"the caller's":              {search{usual: usual, binDir: dir("path-16")}, 0, "path-16"},
		"only the caller's":         {search{usual: usual, binDir: dir("refusing")}, 0, ""},
		"downloaded before":         {search{cache: cacheOf(t, dir("cache"), "17.5.0")}, 0, "cache/postgres-17.5.0/bin"},
		"nothing":                   {search{path: bad}, 0, ""},
		"no such version":           {search{usual: usual}, 14, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			as, err := accountFor(root)
			check(t, err)
			test.search.as = as
			found, err := test.search.find(t.Context(), test.major, "http://127.0.0.1:1")
			if test.want == "" {
				wantError(t, err, "found no PostgreSQL", "initdb, postgres, pg_ctl", "apt install postgresql")
				return
			}
			check(t, err)
			equal(t, "directory", found.dir, dir(test.want))
		})
	}

	t.Run("the error tells what is wrong with each", func(t *testing.T) {
		t.Parallel()
		as, err := accountFor(root)
		check(t, err)
		_, err = (&search{as: as, usual: []string{dir("usual-9/bin")}, path: bad}).find(t.Context(), 0, "")
		wantError(t, err, "PostgreSQL 14 or newer", dir("refusing")+": exit status 126", "initdb is of PostgreSQL 17, postgres of 18",
			`postgres --version says "hello"`, "pg_ctl: no such file", dir("usual-9/bin")+": is PostgreSQL 9", "pg_config --bindir")
	})
}

// A wrapper that never answers costs the search its limit, not for ever, and ends with the context.
func TestSearchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	root := filepath.Dir(newHome(t))
	bin := programsOf(t, filepath.Join(root, "bin"), "16.1")
	asked := filepath.Join(root, "asked")
	check(t, os.WriteFile(asked, nil, 0o666))
	check(t, os.Chmod(asked, 0o666))
	script(t, filepath.Join(bin, "initdb"), "echo yes > "+asked+"; exec sleep 1000")
	as, err := accountFor(root)
	check(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for size := int64(0); size == 0; time.Sleep(poll) {
			if info, err := os.Stat(asked); err == nil {
				size = info.Size()
			}
		}
		cancel()
	}()
	_, err = (&search{as: as, binDir: bin, path: os.Getenv("PATH")}).find(ctx, 0, "")
	wantError(t, err, bin, "killed")
}

func cacheOf(t *testing.T, dir, version string) string {
	t.Helper()
	programsOf(t, filepath.Join(dir, "postgres-"+version, "bin"), version)
	return dir
}
