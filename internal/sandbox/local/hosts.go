package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local/cgroup"
)

const (
	newPrefix     = ".new-"
	deletedPrefix = ".deleted-"
	hostFile      = "host.json"
)

// hostDir is the directory of a host.
type hostDir string

func (d hostDir) work() string            { return filepath.Join(string(d), "work") }
func (d hostDir) home() string            { return filepath.Join(string(d), "home") }
func (d hostDir) tmp() string             { return filepath.Join(string(d), "tmp") }
func (d hostDir) run(name string) string  { return filepath.Join(string(d), "run", name) }
func (d hostDir) exec(name string) string { return filepath.Join(string(d), "exec", name) }

// made is the content of host.json.
type made struct {
	Key     sandbox.Key `json:"key"`
	RunID   string      `json:"run_id"`
	Network bool        `json:"network"`

	Group *cgroup.Group `json:"group,omitempty"` // its limits; none
}

// An id is the hash of the key and a number of its own: no two hosts of a key
// share it, so that a deletion that comes late cannot hit the next one.
var idRE = regexp.MustCompile(`^[0-9a-f]{32}\.[0-9a-f]{16}$`)

func keyHash(key sandbox.Key) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

func newID(key sandbox.Key) string {
	var n [8]byte
	rand.Read(n[:])
	return keyHash(key) + "." + hex.EncodeToString(n[:])
}

// Create implements sandbox.Provider. The host is made under another name and
// appears by rename; a link from the key's hash to it says which is the key's.
// Whoever finds the link taken adopts what it names.
func (p *Provider) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	const op = "create host"
	if spec.Key == "" {
		return sandbox.Host{}, invalid("a host needs a key")
	}
	link := filepath.Join(p.root, keyHash(spec.Key))
	for {
		if ctx.Err() != nil {
			return sandbox.Host{}, context.Cause(ctx)
		}
		if id, err := os.Readlink(link); err == nil {
			host, err := p.adopt(id, spec)
			if !errors.Is(err, faults.SandboxNotFound) {
				return host, err
			}
			p.unlink(id) // of a host whose deletion stopped half-way
		}
		id := newID(spec.Key)
		if err := p.make(id, spec); err != nil {
			return sandbox.Host{}, fault(op, err)
		}
		err := os.Symlink(id, link)
		if err == nil {
			return p.adopt(id, spec)
		}
		// Nothing has run in it.
		if err := errors.Join(os.RemoveAll(filepath.Join(p.root, id)), notExisting(err)); err != nil {
			return sandbox.Host{}, fault(op, err)
		}
	}
}

// notExisting is nil for the error of a link that is taken.
func notExisting(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// make makes the directory of a host.
func (p *Provider) make(id string, spec sandbox.HostSpec) error {
	fresh, err := os.MkdirTemp(p.root, newPrefix+"*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh) // nothing is there once it was renamed
	dir := hostDir(fresh)
	for _, sub := range []string{dir.work(), dir.home(), dir.tmp(), dir.run("")} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
	}
	group, err := p.limiter.group(id)
	if err != nil {
		return err
	}
	content, err := json.Marshal(made{Key: spec.Key, RunID: spec.RunID, Network: spec.Network, Group: group})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, hostFile), content, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(p.root, id))
}

// unlink takes the key's link away where it names the host.
func (p *Provider) unlink(id string) {
	link := filepath.Join(p.root, strings.SplitN(id, ".", 2)[0])
	if named, err := os.Readlink(link); err == nil && named == id {
		_ = os.Remove(link)
	}
}

func (p *Provider) adopt(id string, spec sandbox.HostSpec) (sandbox.Host, error) {
	_, made, err := p.find(id)
	if err != nil {
		return sandbox.Host{}, err
	}
	if made.Key != spec.Key || made.Network != spec.Network {
		return sandbox.Host{}, faults.Errorf(faults.SandboxConflict,
			"the host of key %q was made for something else", spec.Key)
	}
	return p.host(id, made), nil
}

// Get implements sandbox.Provider.
func (p *Provider) Get(ctx context.Context, id string) (sandbox.Host, error) {
	if ctx.Err() != nil {
		return sandbox.Host{}, context.Cause(ctx)
	}
	_, made, err := p.find(id)
	if err != nil {
		return sandbox.Host{}, err
	}
	return p.host(id, made), nil
}

// List implements sandbox.Provider. Hosts whose deletion stopped half-way are
// among them: Delete finishes it.
func (p *Provider) List(ctx context.Context) ([]sandbox.Host, error) {
	entries, err := os.ReadDir(p.root)
	if err != nil {
		return nil, fault("list hosts", err)
	}
	var hosts []sandbox.Host
	seen := map[string]bool{}
	for _, entry := range entries {
		id := strings.TrimPrefix(entry.Name(), deletedPrefix)
		if !idRE.MatchString(id) || seen[id] {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		seen[id] = true
		made, _ := readMade(filepath.Join(p.root, entry.Name())) // a deletion may be past it
		hosts = append(hosts, p.host(id, made))
	}
	return hosts, nil
}

// Delete implements sandbox.Provider. The rename comes first: a supervisor that
// starts after it cannot write its pid and runs nothing, and one that started
// before it is found.
func (p *Provider) Delete(ctx context.Context, id string) error {
	const op = "delete host"
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !idRE.MatchString(id) {
		return nil
	}
	live, deleted := filepath.Join(p.root, id), filepath.Join(p.root, deletedPrefix+id)
	finish := func() error {
		made, _ := readMade(deleted) // without it there is nothing, or nothing but a rest of files
		if err := newHunt(live, made.Group).end(ctx); err != nil {
			return err
		}
		if made.Group != nil {
			if err := made.Group.Remove(); err != nil {
				return classify(op, err, byErrnoOfGroup)
			}
		}
		return fault(op, removeUntil(ctx, deleted))
	}
	if _, err := os.Lstat(deleted); err == nil { // a deletion that stopped half-way
		if err := finish(); err != nil {
			return err
		}
	}
	p.unlink(id)
	if err := os.Rename(live, deleted); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault(op, err)
	}
	return finish()
}

func (p *Provider) host(id string, m made) sandbox.Host {
	return sandbox.Host{ID: id, Key: m.Key, Provider: p.Name(), Machine: p.machine}
}

// find returns the directory of a live host.
func (p *Provider) find(id string) (hostDir, made, error) {
	if !idRE.MatchString(id) {
		return "", made{}, notFound(id)
	}
	dir := filepath.Join(p.root, id)
	m, err := readMade(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", made{}, notFound(id)
	}
	if err != nil {
		return "", made{}, fault("look up host", err)
	}
	return hostDir(dir), m, nil
}

func readMade(dir string) (made, error) {
	var m made
	content, err := os.ReadFile(filepath.Join(dir, hostFile))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(content, &m)
}

// removeUntil is remove until ctx is done. What is left is removed all the same:
// a tree of many files takes longer than anybody should have to wait.
func removeUntil(ctx context.Context, dir string) error {
	removed := make(chan error, 1)
	go func() { removed <- remove(dir) }()
	select {
	case err := <-removed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remove removes a directory and all below it, read-only directories included.
func remove(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && os.Chmod(path, 0o700) == nil && err != nil {
			return filepath.SkipDir
		}
		return nil
	})
	return os.RemoveAll(dir)
}
