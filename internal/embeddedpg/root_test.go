package embeddedpg

import (
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this is about root, and we are not")
	}
}

// Root's tests are run once more by a user who is not: most people are not.
func TestAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := filepath.Dir(newHome(t))
	as, err := accountFor(dir)
	check(t, err)
	check(t, as.own(dir))
	binary := filepath.Join(dir, "tests")
	copyFile(t, os.Args[0], binary)
	check(t, os.Chmod(binary, 0o755))

	cmd := as.command(t.Context(), os.Getenv("PATH"), binary, "-test.run",
		"^Test(ServerIsPrivate|ServerOfAKilled|AnyPath|SocketDirectory|StalePid|ClosedAt)")
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A project that is checked out below /root, which no service user may enter.
func TestHomeInAClosedDirectory(t *testing.T) {
	t.Parallel()
	needRoot(t)
	closed := t.TempDir()
	check(t, os.Chmod(closed, 0o700))
	wanted := filepath.Join(closed, "project", "pg")
	cfg := config(t, wanted)
	s := start(t, cfg)
	t.Cleanup(func() { check(t, os.RemoveAll(s.Dir())) })
	equal(t, "parent", filepath.Dir(s.Dir()), systemDir)
	equal(t, "psql", psql(t, s.URL(), "SELECT 1"), "1")
	query(t, s.URL(), "CREATE TABLE kept AS SELECT 1 AS n")
	if _, err := os.Stat(wanted); err == nil {
		t.Errorf("%s was made for nothing", wanted)
	}
	stop(t, s)

	again := start(t, cfg)
	equal(t, "dir", again.Dir(), s.Dir())
	equal(t, "data", query(t, again.URL(), "SELECT n FROM kept"), "1")
	stop(t, again)
}

func TestUmaskOfRoot(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := filepath.Join(newHome(t), "below", "pg")
	p := newProcess(t, dir, userMask+"=077")
	equal(t, "answer", query(t, p.next(t).URL, "SELECT 1"), "1")
	p.leave()
	equal(t, "stopped", p.next(t).Stopped, true)
}

// The server's own account has no business in the database either: as "nobody" it is shared with strangers.
func TestOtherUsersAreKeptOut(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := start(t, config(t, newCluster(t)))
	stranger := account{uid: 12345, gid: 12345, borrowed: true}
	for name, test := range map[string]struct {
		as   account
		says string
	}{
		"stranger": {stranger, "Permission denied"},
		"server":   {s.home.as, "Peer authentication failed"},
	} {
		out, err := test.as.command(t.Context(), os.Getenv("PATH"), "/usr/bin/psql", "-X", "-c", "SELECT 1", s.URL()).CombinedOutput()
		if err == nil || !strings.Contains(string(out), test.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	for _, name := range []string{startLock, usersLock, serverLock, "server.log"} {
		info, err := os.Stat(filepath.Join(s.Dir(), name))
		check(t, err)
		uid, _ := owner(info)
		equal(t, "owner of "+name, uid, 0)
	}
}

func TestHomeOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := newHome(t)
	check(t, os.Mkdir(dir, 0o755))
	check(t, os.Chown(dir, 12345, 12345))
	_, err := Start(t.Context(), config(t, dir))
	wantError(t, err, dir, "uid 12345")
}

// A cluster made for "nobody" goes on as his when the machine gets a user "postgres".
func TestClusterKeepsItsOwner(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := newCluster(t)
	nobody, err := user.Lookup("nobody")
	check(t, err)
	out, err := exec.Command("chown", "-R", nobody.Uid+":"+nobody.Gid, filepath.Join(dir, "data"), filepath.Join(dir, "run")).CombinedOutput()
	if err != nil {
		t.Fatalf("chown: %v\n%s", err, out)
	}
	s := start(t, config(t, dir))
	equal(t, "uid", strconv.Itoa(s.home.as.uid), nobody.Uid)
	equal(t, "data", query(t, s.URL(), "SELECT n FROM kept"), "1")
}

func TestClosedAt(t *testing.T) {
	t.Parallel()
	root := filepath.Dir(newHome(t))
	deep := filepath.Join(root, "a", "b")
	check(t, os.MkdirAll(deep, 0o755))
	a := filepath.Join(root, "a")
	me := account{uid: os.Geteuid(), gid: os.Getegid()}
	stranger := account{uid: 12345, gid: 12345}
	mate := account{uid: 12345, gid: os.Getegid()}
	for _, test := range []struct {
		mode os.FileMode
		as   account
		want string
	}{
		{0o711, stranger, ""}, {0o766, stranger, a}, {0o710, mate, ""}, {0o701, mate, a}, {0o700, me, ""}, {0o677, me, a},
	} {
		check(t, os.Chmod(a, test.mode))
		// Not root's own test: it may enter what its mode bits close.
		if os.Geteuid() == 0 || test.as != me {
			equal(t, test.mode.String(), test.as.closedAt(filepath.Join(deep, "not", "yet")), test.want)
		}
	}
	check(t, os.Chmod(a, 0o755))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	check(t, err)
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_CLOEXEC, 0o755)
	check(t, err)
	_, err = io.Copy(out, in)
	check(t, err)
	check(t, out.Close())
}
