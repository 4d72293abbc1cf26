package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// clusterMajor is the major version of Postgres that made the home's cluster, 0 when there is none.
func (h home) clusterMajor() (int, error) {
	text, err := os.ReadFile(filepath.Join(h.path(dataName), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(h.path(dataName)); err == nil {
			return 0, fmt.Errorf("%s is not a Postgres cluster: it has no PG_VERSION", h.path(dataName))
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: PG_VERSION: %w", h.path(dataName), err)
	}
	return major, nil
}

// createCluster runs initdb in a directory that gets the cluster's name only when all is done, and written to disk:
// an initdb that does not get there leaves a directory that a later one removes.
func (h home) createCluster(ctx context.Context, pg installation, path string) error {
	leftovers, _ := filepath.Glob(filepath.Join(globQuote(h.dir), "init-*"))
	for _, dir := range leftovers {
		_ = os.RemoveAll(dir) // fails while an initdb whose parent was killed still writes there
	}
	dir, err := os.MkdirTemp(h.dir, "init-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // there is none once it has been renamed
	if err := h.as.own(dir); err != nil {
		return err
	}
	out, err := h.as.command(ctx, path, pg.program("initdb"),
		"--pgdata="+dir,
		"--username="+role,
		"--auth-local=peer", "--auth-host=reject",
		"--locale=C", "--encoding=UTF8",
	).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", pg.program("initdb"), err, lastLines(string(out)))
	}
	return os.Rename(dir, h.path(dataName))
}

// writeAccess writes who may connect: the user who runs Start, and root. It does so at every start, because a home
// may be copied to another user.
func (h home) writeAccess(ctx context.Context, path string) error {
	root, err := systemName(ctx, path, 0)
	if err != nil {
		return err
	}
	self, err := systemName(ctx, path, os.Geteuid())
	if err != nil {
		return err
	}
	const head = "# Written by executor at every start.\n"
	ident := head
	for _, name := range []string{root, self} {
		ident += fmt.Sprintf("%s \"%s\" %s\n", role, strings.ReplaceAll(name, `"`, `""`), role)
	}
	return errors.Join(
		h.writeFile("pg_hba.conf", head+"local all all peer map="+role+"\n"),
		h.writeFile("pg_ident.conf", ident),
	)
}

// writeFile writes a file of the home that the account may read.
func (h home) writeFile(name, text string) error {
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		return err
	}
	return h.as.own(h.path(name))
}

// clearStale removes the lock files that would keep Postgres from starting though no server of ours runs: they were
// cut short, or their pid has since gone to another program. A postmaster.pid whose process is dead is left to
// Postgres, which then also looks for that server's shared memory. The caller holds server.lock.
func (h home) clearStale() (removed bool, err error) {
	name := filepath.Join(h.path(dataName), "postmaster.pid")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		// Lines: pid, data directory, start time, port, socket directory, ...
		lines := append(strings.Split(string(text), "\n"), make([]string, 5)...)
		pid, err := strconv.Atoi(lines[0])
		if err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			// Somebody may have started the cluster by hand: his server is not in server.lock, and listens elsewhere.
			if listens(filepath.Join(h.fromData(lines[4]), ".s.PGSQL."+lines[3])) {
				return false, fmt.Errorf("a server that Executor did not start runs on this cluster, pid %d: "+
					"stop it (pg_ctl -D %s stop)", pid, h.path(dataName))
			}
			if err := os.Remove(name); err != nil {
				return false, err
			}
			removed = true
		}
	}
	socket := filepath.Join(h.socketDir(), socketName)
	if listens(socket) {
		return removed, fmt.Errorf("another server listens on %s; "+
			"that of a home that was deleted here stops by itself within a minute", socket)
	}
	if err := os.Remove(socket + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return removed, err
	}
	return removed, nil
}

// fromData resolves a path the way the server does, whose directory is the cluster.
func (h home) fromData(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(h.path(dataName), path)
}

func listens(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, probeLimit)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
