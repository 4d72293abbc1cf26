package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// postgres is a server of our own on a loopback address that survives its
// restarts. It is trusted not to lose the machine's power: fsync is off.
type postgres struct {
	bin, dir string
	port     int
	as       *syscall.Credential // of root, who may not run it

	began time.Time
}

// newPostgres makes a cluster below dir and starts it.
func newPostgres(ctx context.Context, dir string) (*postgres, error) {
	bin, err := findPostgres(ctx)
	if err != nil {
		return nil, err
	}
	p := &postgres{bin: bin, dir: filepath.Join(dir, "postgres")}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := p.borrow(dir); err != nil {
			return nil, err
		}
	}
	if p.port, err = freePort(); err != nil {
		return nil, err
	}
	if err := p.call(ctx, "initdb", "-D", p.data(), "-U", "chaos", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, err
	}
	p.began = time.Now()
	return p, p.start(ctx)
}

func findPostgres(ctx context.Context) (string, error) {
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		if dir := strings.TrimSpace(string(out)); exec.Command(filepath.Join(dir, "postgres"), "--version").Run() == nil {
			return dir, nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		return "", errors.New("no Postgres is installed")
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// borrow makes root run the server as the user postgres, or nobody.
func (p *postgres) borrow(dir string) error {
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	p.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(err1, err2, os.Chmod(dir, 0o711), os.Chown(p.dir, uid, gid))
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

func (p *postgres) url(port int) string {
	return fmt.Sprintf("postgres://chaos@127.0.0.1:%d/postgres?sslmode=disable", port)
}

func (p *postgres) call(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, program), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Setsid: true}
	out := &bytes.Buffer{}
	log, err := os.CreateTemp("", "chaos-pg-*") // the server inherits it: no pipe
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		if text, readErr := os.ReadFile(log.Name()); readErr == nil {
			out.Write(text)
		}
		return fmt.Errorf("%s %s: %w\n%s", program, args[0], err, out)
	}
	return nil
}

func (p *postgres) ctl(ctx context.Context, args ...string) error {
	return p.call(ctx, "pg_ctl", append(args, "-D", p.data(), "-w", "-t", "60")...)
}

func (p *postgres) start(ctx context.Context) error {
	options := fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=300 -c fsync=off -c log_line_prefix='%%m [%%p] '", p.port)
	return p.ctl(ctx, "start", "-l", filepath.Join(p.dir, "log"), "-o", options)
}

// restart crashes the server and brings it back.
func (p *postgres) restart(ctx context.Context) error {
	return p.ctl(ctx, "restart", "-m", "immediate", "-l", filepath.Join(p.dir, "log"))
}

func (p *postgres) stop(ctx context.Context, mode string) error {
	return p.ctl(ctx, "stop", "-m", mode)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
