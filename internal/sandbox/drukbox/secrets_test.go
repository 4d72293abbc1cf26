package drukbox_test

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
)

// Neither the token nor a private key is in what is logged, in errors, or in
// a command line of the host; keys are ours alone to read, and go with their
// host.
func TestSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	client, ledger := w.client(p)
	var said strings.Builder
	note := func(err error) {
		if err != nil {
			said.WriteString(err.Error() + "\n")
			for _, link := range faults.Chain(err) {
				said.WriteString(link.Message + "\n")
			}
		}
	}
	w.server.FailCreate("ProviderCommandError: Authorization: Bearer " + drukboxtest.Token)
	_, err := client.Acquire(soon(t), ledger, "drukbox", spec)
	note(err)
	box, err := client.Acquire(soon(t), ledger, "drukbox", spec)
	if err != nil {
		t.Fatal(err)
	}
	secret := map[string]string{"SECRET": "canary-of-a-command"}
	exit, err := box.Exec(soon(t), sandbox.Command{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"}, Env: secret}, sandbox.Stdio{Out: &said})
	if err != nil || !exit.Success() {
		t.Fatalf("%+v, %v", exit, err)
	}
	private := w.private(box.Host().ID)
	w.server.LockOut(t, box.Host().ID)
	_, err = p.Dial(soon(t), box.Host())
	note(err)
	note(os.WriteFile(filepath.Join(w.keys, box.Host().ID), []byte(strings.ReplaceAll(private, "-----END", "END")), 0o600))
	_, err = p.Dial(soon(t), box.Host())
	note(err)
	refused := w.open(t, func(c *drukbox.Config) { c.Token = "canary-of-a-token" })
	for _, op := range ops {
		note(op(soon(t), refused))
	}
	_ = box.Close()
	client.Release(soon(t), ledger, box.Entry())

	for _, secret := range []string{drukboxtest.Token, "canary-of-a-token", "canary-of-a-command", strings.Split(private, "\n")[2]} {
		if strings.Contains(said.String()+w.log.String(), secret) {
			t.Errorf("%q was said:\n%s%s", secret, said.String(), w.log)
		}
	}
	if !strings.Contains(said.String(), "[token]") || !strings.Contains(said.String(), "sshd") {
		t.Errorf("nothing was looked at:\n%s", said.String())
	}
	w.noKeys()
}

func (w *world) private(id string) string {
	w.Helper()
	err := filepath.WalkDir(w.keys, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
			w.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
		return nil
	})
	text, readErr := os.ReadFile(filepath.Join(w.keys, id))
	if err != nil || readErr != nil || !strings.HasPrefix(string(text), "-----BEGIN OPENSSH PRIVATE KEY-----") {
		w.Fatalf("%v, %v, %d bytes", err, readErr, len(text))
	}
	return string(text)
}

// What is not there is removed already, and nothing outside is touched.
func TestRemoveKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	outside := filepath.Join(filepath.Dir(w.keys), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, h := range []sandbox.Host{{}, {ID: "../outside"}, {Key: "../outside"}, {ID: aHost, Key: "other:key"}, host, host} {
		if err := p.RemoveKey(soon(t), h); err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	w.noKeys()
}

// A host that another machine deleted leaves no key behind.
func TestKeysOfHostsThatAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	host := w.create(p)
	elsewhere := w.open(t, func(c *drukbox.Config) { c.KeyDir = t.TempDir() })
	if err := elsewhere.Delete(soon(t), host.ID); err != nil {
		t.Fatal(err)
	}
	kept, err := p.Create(soon(t), sandbox.HostSpec{Key: "kept:key"})
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	files, _ := filepath.Glob(filepath.Join(w.keys, "*"))
	for _, file := range files {
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.List(soon(t)); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.keys, host.ID+"*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	w.works(p, kept)
}

// A create that was refused leaves what would tell its host, for as long as
// there could be one.
func TestCreatesThatMadeNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drukboxtest.Options{})
	p := w.open(t, nil)
	w.server.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPost {
			return false
		}
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if _, err := p.Create(soon(t), sandbox.HostSpec{Key: "key"}); err == nil {
		t.Fatal("it was not refused")
	}
	files := func() []string {
		found, _ := filepath.Glob(filepath.Join(w.keys, "*"))
		return found
	}
	before, old := files(), time.Now().Add(-2*time.Hour)
	if len(before) != 2 {
		t.Errorf("it left %v", before)
	}
	sweep := func() []string {
		for _, file := range files() {
			if err := os.Chtimes(file, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.List(soon(t)); err != nil {
			t.Fatal(err)
		}
		return files()
	}
	if left := sweep(); len(left) != 2 {
		t.Errorf("before the lease is over, only %v", left)
	}
	for _, file := range before {
		if strings.HasSuffix(file, ".intent") {
			if err := os.WriteFile(file, fmt.Appendf(nil, `{"key":"key","ends":[%d]}`, old.UnixMicro()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	sweep() // in the order of their names, the lock may be first
	if left := sweep(); len(left) != 0 {
		t.Errorf("after it, still %v", left)
	}
}
