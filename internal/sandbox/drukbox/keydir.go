package drukbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// keyDir is what this machine knows of its hosts and the control plane does
// not say:
//
//	<id>            the private key, as OpenSSH wants it: ssh -i works
//	<id>.json       the idempotency key that the host was made for
//	<key>.lock      held while a host is being made for a key
//	<key>.intent    the key, and the end of the lease that each create for it
//	                asked for. Nobody else asks for the same microsecond, so
//	                that a host whose answer was lost can be told by it
//
// <id> is the control plane's; <key> is a hash, for keys hold colons. Files
// appear by rename, with mode 0600.
type keyDir string

const (
	ownerSuffix  = ".json"
	lockSuffix   = ".lock"
	intentSuffix = ".intent"
)

type owner struct {
	Key sandbox.Key `json:"key"`
}

type intent struct {
	Key  sandbox.Key `json:"key"`
	Ends []int64     `json:"ends"` // in microseconds since 1970
}

func newKeyDir(path string) (keyDir, error) {
	if path == "" {
		return "", faults.Errorf(faults.SandboxInvalid, "drukbox: a directory for private keys is needed")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", diskFault("make the directory for private keys", err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", diskFault("resolve the directory for private keys", err)
	}
	return keyDir(abs), nil
}

func (d keyDir) file(name string) string { return filepath.Join(string(d), name) }

func hashed(key sandbox.Key) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// save keeps what the answer to a create said.
func (d keyDir) save(id string, key sandbox.Key, private string) error {
	if private != "" {
		if err := d.write(id, []byte(private)); err != nil {
			return err
		}
	}
	return d.writeJSON(id+ownerSuffix, owner{key})
}

func (d keyDir) has(id string) bool {
	_, err := os.Stat(d.file(id))
	return validID(id) && err == nil
}

// private returns a host's private key; one that is not here is fs.ErrNotExist.
func (d keyDir) private(id string) ([]byte, error) { return os.ReadFile(d.file(id)) }

// owner is the key that a host was made for; empty: not by this machine.
func (d keyDir) owner(id string) sandbox.Key {
	var o owner
	if !validID(id) || d.readJSON(id+ownerSuffix, &o) != nil {
		return ""
	}
	return o.Key
}

func (d keyDir) remove(id string) error { return d.unlink(id, id+ownerSuffix) }

// sweepAge spares hosts that were made after the list was.
const sweepAge = time.Hour

// sweep removes what is kept for hosts that are gone, and for creates that
// made none: those whose lease would be over.
func (d keyDir) sweep(alive map[string]bool, now time.Time) error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return diskFault("sweep private keys", err)
	}
	var failed []error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < sweepAge || !d.useless(e.Name(), alive, now) {
			continue
		}
		failed = append(failed, d.unlink(e.Name()))
	}
	return errors.Join(failed...)
}

// useless: whoever waits for a lock that is removed takes the next one.
func (d keyDir) useless(name string, alive map[string]bool, now time.Time) bool {
	if key, ok := strings.CutSuffix(name, intentSuffix); ok {
		return d.over(key, now)
	}
	if key, ok := strings.CutSuffix(name, lockSuffix); ok {
		return d.over(key, now)
	}
	id := strings.TrimSuffix(name, ownerSuffix)
	return validID(id) && !alive[id]
}

// over: whether every lease that was asked for under a hash has ended.
func (d keyDir) over(hash string, now time.Time) bool {
	var i intent
	if err := d.readJSON(hash+intentSuffix, &i); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return !slices.ContainsFunc(i.Ends, func(end int64) bool { return end >= now.UnixMicro() })
}

// intend notes, before a create is sent, what will tell its host.
func (d keyDir) intend(key sandbox.Key, end time.Time) error {
	name := hashed(key) + intentSuffix
	i := intent{Key: key}
	_ = d.readJSON(name, &i)
	i.Ends = append(i.Ends, end.UnixMicro())
	return d.writeJSON(name, i)
}

// answered drops the intents of a key: its host has an id.
func (d keyDir) answered(key sandbox.Key) error { return d.unlink(hashed(key) + intentSuffix) }

// forget removes everything about a key.
func (d keyDir) forget(key sandbox.Key) error {
	return d.unlink(hashed(key)+intentSuffix, hashed(key)+lockSuffix)
}

func (d keyDir) intents() map[int64]sandbox.Key {
	found := map[int64]sandbox.Key{}
	files, _ := filepath.Glob(d.file("*" + intentSuffix))
	for _, file := range files {
		var i intent
		if d.readJSON(filepath.Base(file), &i) == nil {
			for _, end := range i.Ends {
				found[end] = i.Key
			}
		}
	}
	return found
}

func (d keyDir) writeJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return d.write(name, text)
}

func (d keyDir) readJSON(name string, v any) error {
	text, err := os.ReadFile(d.file(name))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// write makes a file appear whole, also after a crash. CreateTemp's mode is
// 0600.
func (d keyDir) write(name string, content []byte) error {
	file, err := os.CreateTemp(string(d), ".new-*")
	if err != nil {
		return diskFault("write "+name, err)
	}
	defer os.Remove(file.Name()) // nothing is there once it was renamed
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return diskFault("write "+name, err)
	}
	return diskFault("write "+name, os.Rename(file.Name(), d.file(name)))
}

func (d keyDir) unlink(names ...string) error {
	var failed []error
	for _, name := range names {
		if strings.ContainsRune(name, '/') {
			return fmt.Errorf("%q is no name in a directory", name)
		}
		if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, diskFault("remove "+name, err))
		}
	}
	return errors.Join(failed...)
}

// diskFault classifies an error of our own disk: it is no host's that is full
// or closed to us, so that another attempt, on another machine, may do.
func diskFault(op string, err error) error {
	if err == nil {
		return nil
	}
	return faults.New(faults.SandboxProvisioning, op, err)
}
