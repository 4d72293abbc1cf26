package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

func TestFaultsByErrno(t *testing.T) {
	t.Parallel()
	tested := map[syscall.Errno]bool{}
	for _, test := range []struct {
		errno              syscall.Errno
		file, start, group *faults.Kind
	}{
		{syscall.ENOENT, faults.SandboxNotFound, faults.SandboxInvalid, faults.SandboxUnsupported},
		{syscall.EACCES, faults.SandboxDenied, faults.SandboxInvalid, faults.SandboxUnsupported},
		{syscall.ENOEXEC, nil, faults.SandboxInvalid, nil},
		{syscall.E2BIG, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.EAGAIN, faults.SandboxCapacity, faults.SandboxCapacity, faults.SandboxCapacity},
		{syscall.ENOMEM, faults.SandboxCapacity, faults.SandboxCapacity, faults.SandboxCapacity},
		{syscall.EMFILE, faults.SandboxCapacity, faults.SandboxCapacity, nil},
		{syscall.ENFILE, faults.SandboxCapacity, faults.SandboxCapacity, nil},
		{syscall.ENOSPC, faults.SandboxDiskFull, faults.SandboxDiskFull, faults.SandboxCapacity},
		{syscall.EDQUOT, faults.SandboxDiskFull, faults.SandboxDiskFull, nil},
		{syscall.EROFS, faults.SandboxDenied, faults.SandboxDenied, faults.SandboxUnsupported},
		{syscall.EPERM, faults.SandboxDenied, faults.SandboxDenied, faults.SandboxUnsupported},
		{syscall.ENOTDIR, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.EISDIR, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.ELOOP, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.ENAMETOOLONG, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.EINVAL, faults.SandboxInvalid, faults.SandboxInvalid, faults.SandboxUnsupported},
		{syscall.EEXIST, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.ENOTEMPTY, faults.SandboxInvalid, faults.SandboxInvalid, nil},
		{syscall.EBUSY, nil, nil, faults.SandboxUnsupported},
		{syscall.EOPNOTSUPP, nil, nil, faults.SandboxUnsupported},
		{syscall.EIO, nil, nil, nil}, // nobody foresaw it
	} {
		tested[test.errno] = true
		cause := &fs.PathError{Op: "open", Path: "x", Err: test.errno}
		for _, got := range []struct {
			err  error
			want *faults.Kind
		}{{local.Fault("op", cause), test.file}, {local.ExecFault("op", cause), test.start}, {local.GroupFault("op", cause), test.group}} {
			if !errors.Is(got.err, test.errno) {
				t.Errorf("%v: the cause is lost in %v", test.errno, got.err)
			}
			if got.want == nil && faults.Classified(got.err) || got.want != nil && !errors.Is(got.err, got.want) {
				t.Errorf("%v: got %v", test.errno, got.err)
			}
		}
	}
	for _, table := range []map[syscall.Errno]*faults.Kind{local.ByErrno, local.ByErrnoOfExec, local.ByErrnoOfGroup} {
		for errno := range table {
			if !tested[errno] {
				t.Errorf("%v has a row, and no test", errno)
			}
		}
	}
}

// Whatever a call says, in whatever it is wrapped: it is the host's fault or
// nobody's, and never lost.
func FuzzErrno(f *testing.F) {
	for errno := range local.ByErrno {
		f.Add(uint16(errno), uint8(errno), "open", "x")
	}
	f.Fuzz(func(t *testing.T, n uint16, wrap uint8, op, path string) {
		errno := syscall.Errno(n)
		cause := error(errno)
		for _, bit := range []uint8{1, 2, 4, 8} {
			if wrap&bit == 0 {
				continue
			}
			switch bit {
			case 1:
				cause = &fs.PathError{Op: op, Path: path, Err: cause}
			case 2:
				cause = &os.LinkError{Op: op, Old: path, New: path, Err: cause}
			case 4:
				cause = os.NewSyscallError(op, cause)
			case 8:
				cause = fmt.Errorf("%s: %w", path, errors.Join(errors.New(op), cause))
			}
		}
		for _, classify := range []func(string, error) error{local.Fault, local.ExecFault, local.GroupFault} {
			got := classify(op, cause)
			if !errors.Is(got, errno) || faults.Of(got).Kind == nil {
				t.Errorf("%v became %v", cause, got)
			}
			if faults.Classified(got) && (!errors.Is(got, faults.Sandbox) || classify(op, got) != got) {
				t.Errorf("%v became %v", cause, got)
			}
		}
	})
}

func TestFaultsOfRealErrors(t *testing.T) {
	t.Parallel()
	garbage, plain := filepath.Join(t.TempDir(), "garbage"), filepath.Join(t.TempDir(), "plain")
	for file, mode := range map[string]fs.FileMode{garbage: 0o755, plain: 0o644} {
		if err := os.WriteFile(file, []byte("\x00\x01"), mode); err != nil {
			t.Fatal(err)
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	_, err = full.Write([]byte("x"))
	if err = local.Fault("write", err); !errors.Is(err, faults.SandboxDiskFull) {
		t.Error(err)
	}
	for _, argv := range [][]string{{garbage}, {plain}, {"/no/such/file"}, {"/bin/true", strings.Repeat("x", 1<<20)}} {
		err := (&exec.Cmd{Path: argv[0], Args: argv}).Run()
		if err = local.ExecFault("start", err); !errors.Is(err, faults.SandboxInvalid) || faults.Of(err).Outcome != faults.NotStarted {
			t.Errorf("%s: %v", argv[0], err)
		}
	}
	if local.Fault("nothing", nil) != nil {
		t.Error("nothing is a fault")
	}
}

// tiny is a root on a file system of 2 MB.
func tiny(t *testing.T) string {
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("only root can mount:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
			t.Error("unmount:", err)
		}
	})
	return root
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, mode := range []local.Mode{local.Bwrap, local.Plain} {
		t.Run(string(mode), func(t *testing.T) {
			root := tiny(t)
			conn := dial(t, open(t, root, mode))
			err := conn.Upload(t.Context(), "big", 0o644, strings.NewReader(strings.Repeat("x", 3<<20)))
			if code(err) != "sandbox_disk_full" {
				t.Errorf("upload: %v", err)
			}
			// The space comes back once nobody forks with the file open.
			for code(err) == "sandbox_disk_full" && t.Context().Err() == nil {
				_, err = conn.Start(t.Context(), launch(3), shell("true"))
			}
			// The process fills the disk, and its end is recorded all the same.
			start(t, conn, 1, shell("echo begun; cat /dev/zero >fill; kill -KILL $$"))
			if out, exit, err := follow(t, conn, 1); err != nil || exit.Signal != "SIGKILL" || out != "begun\n" {
				t.Errorf("%q, %+v, %v", out, exit, err)
			}
			// It failed on a full disk: that is its own account, and no proof.
			if exit, err := conn.Exec(t.Context(), shell("echo x >more"), sandbox.Stdio{}); err != nil || exit.Success() {
				t.Errorf("a command on the full disk: %+v, %v", exit, err)
			}
			_, err = conn.Start(t.Context(), launch(2), shell("true"))
			if code(err) != "sandbox_disk_full" || faults.Of(err).Outcome != faults.NotStarted {
				t.Errorf("start: %v", err)
			}
			sh(t, conn, "rm fill")
			if p := start(t, conn, 2, shell("true")); p.Adopted {
				t.Error("the start that failed left a launch")
			}
			if err := conn.Stop(t.Context(), launch(2), 0); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	root := tiny(t)
	conn := dial(t, open(t, root, local.Plain))
	if err := syscall.Mount("", root, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := conn.Upload(t.Context(), "file", 0o644, strings.NewReader("x")); code(err) != "sandbox_denied" {
		t.Errorf("upload: %v", err)
	}
	if _, err := conn.Start(t.Context(), launch(1), shell("true")); code(err) != "sandbox_denied" {
		t.Errorf("start: %v", err)
	}
	if err := syscall.Mount("", root, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
}

func TestConflict(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), local.Plain)
	dial(t, p)
	other := spec
	other.Network = true
	if _, err := p.Create(t.Context(), other); code(err) != "sandbox_conflict" {
		t.Errorf("got %v", err)
	}
	if _, err := p.Create(t.Context(), sandbox.HostSpec{}); code(err) != "sandbox_invalid" {
		t.Errorf("got %v", err)
	}
}
