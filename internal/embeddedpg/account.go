package embeddedpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// account is the operating system's user that Postgres runs as: oneself, or a service user when oneself is root.
type account struct {
	uid, gid int
	borrowed bool // not oneself
}

// serviceUsers are who runs Postgres for root, the first that exists.
var serviceUsers = []string{"postgres", "nobody"}

// accountFor returns the account for the server of home dir. A cluster that exists keeps its owner, whatever users
// the machine has got since.
func accountFor(dir string) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{uid: uid, gid: os.Getegid()}, nil
	}
	if info, err := os.Stat(filepath.Join(dir, dataName)); err == nil {
		if uid, gid := owner(info); uid != 0 {
			return account{uid: uid, gid: gid, borrowed: true}, nil
		}
	}
	for _, name := range serviceUsers {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(found.Uid)
		gid, gidErr := strconv.Atoi(found.Gid)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{uid: uid, gid: gid, borrowed: true}, nil
		}
	}
	return account{}, fmt.Errorf("root cannot run Postgres, and there is no user %s to run it as",
		strings.Join(serviceUsers, " or "))
}

// command prepares a program to be run by the account: away from the terminal's signals, in a directory that every
// account can enter, and without the caller's environment.
func (a account) command(ctx context.Context, path, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + path, "LC_ALL=C", "TZ=UTC"}
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.borrowed {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}

// closedAt returns the directory, dir or the nearest above it, that the account cannot enter; empty when it can
// reach dir. What does not exist yet counts as open. It reads the mode bits only.
func (a account) closedAt(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && !a.mayEnter(info) {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

func (a account) mayEnter(info os.FileInfo) bool {
	mode := info.Mode().Perm()
	switch uid, gid := owner(info); {
	case uid == a.uid:
		return mode&0o100 != 0
	case gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// own gives the account what root has made for it.
func (a account) own(path string) error {
	if !a.borrowed {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// systemName is the user's name as the server itself will find it, also where the names come from a directory
// service that only the C library can ask.
func systemName(ctx context.Context, path string, uid int) (string, error) {
	id := strconv.Itoa(uid)
	if found, err := user.LookupId(id); err == nil {
		return found.Username, nil
	}
	program, err := lookPath(path, "id")
	if err != nil {
		return "", fmt.Errorf("uid %d has no name, and Postgres needs one", uid)
	}
	out, err := account{}.command(ctx, path, program, "-u", "-n", id).Output()
	if err != nil {
		return "", fmt.Errorf("uid %d has no name, and Postgres needs one: %w", uid, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func owner(info os.FileInfo) (uid, gid int) {
	stat := info.Sys().(*syscall.Stat_t)
	return int(stat.Uid), int(stat.Gid)
}
