package jobs_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"executor/internal/runs"
	"executor/internal/sandbox/sandboxtest"
)

// behindPgBouncer starts a PgBouncer in front of the world's database.
func (w *world) behindPgBouncer(poolMode string) (url string) {
	t := w.t
	t.Helper()
	server := w.store.Pool().Config().ConnConfig
	dir, err := os.MkdirTemp("", "bouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// PgBouncer refuses root, and the server knows its users by the kernel: a
	// relay of ours stands between them.
	relay(t, filepath.Join(dir, ".s.PGSQL.5432"), filepath.Join(server.Host, fmt.Sprintf(".s.PGSQL.%d", server.Port)))
	config := fmt.Sprintf("[databases]\n%s = host=%s port=5432 user=%s\n[pgbouncer]\npool_mode = %s\nunix_socket_dir = %s\nlisten_addr =\nlisten_port = 6432\nauth_type = any\nlogfile = %s/log\nserver_tls_sslmode = disable\nmax_client_conn = 500\ndefault_pool_size = 30\n",
		server.Database, dir, server.User, poolMode, dir, dir)
	ini := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(ini, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("pgbouncer", ini)
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("this test needs pgbouncer: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	w.eventually(func() bool { _, err := os.Stat(filepath.Join(dir, ".s.PGSQL.6432")); return err == nil }, func() any { return nil }, "a socket")
	return fmt.Sprintf("postgres://%s@/%s?host=%s&port=6432", server.User, server.Database, dir)
}

// relay joins every connection to one socket with another.
func relay(t *testing.T, from, to string) {
	t.Helper()
	listener, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(from, 0o777); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				in.Close()
				continue
			}
			join := func(a, b net.Conn) { _, _ = io.Copy(a, b); a.Close(); b.Close() }
			group.Go(func() { join(in, out) })
			group.Go(func() { join(out, in) })
		}
	})
	t.Cleanup(func() { listener.Close(); group.Wait() })
}

// What the docs say of PgBouncer: session pooling as it is; transaction
// pooling with polling, and a way to send queries that prepares nothing.
func TestBehindPgBouncer(t *testing.T) {
	for mode, params := range map[string]string{"session": "", "transaction": "&default_query_exec_mode=exec"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			url := w.behindPgBouncer(mode) + params
			w.connect(func(c *pgxpool.Config) {
				parsed, err := pgxpool.ParseConfig(url)
				if err != nil {
					t.Fatal(err)
				}
				*c = *parsed
			})
			end := make(chan struct{})
			w.fake.Script("a", sandboxtest.Proc{Hang: true})
			w.fake.Script("d", sandboxtest.Proc{Stdout: "x\n", Until: end})
			e := w.executor()
			e.Config.PollOnly = mode == "transaction"
			stop := w.start(e)
			cancelled := w.enqueue(oneStep)
			w.running(cancelled)
			w.cancel(cancelled)
			w.await(cancelled, state{runs.Cancelled, "", "cancelled"})

			handedOver := w.enqueue(`{"steps": [{"name": "d", "shell": "x"}]}`)
			w.running(handedOver)
			time.Sleep(5 * time.Second) // past the limit for a lost session
			stop()
			e = w.executor()
			e.Config.PollOnly = mode == "transaction"
			w.start(e)
			close(end)
			w.await(handedOver, state{runs.Succeeded, "", "completed"})
			if n := query[int](w, `SELECT count(*) FROM executor.executors WHERE lost_at IS NOT NULL`); n != 0 {
				t.Error("an executor was judged dead")
			}
			if _, err := w.store.Get(context.Background(), handedOver); err != nil {
				t.Error(err)
			}
		})
	}
}
