package runs

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/sandbox"
)

// cutter closes the connection under the n-th statement from now; 0: under none.
type cutter struct{ n atomic.Int32 }

func (c *cutter) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return c.cut(ctx, conn)
}

func (c *cutter) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return c.cut(ctx, conn)
}

func (c *cutter) cut(ctx context.Context, conn *pgx.Conn) context.Context {
	if c.n.Add(-1) == 0 {
		conn.PgConn().Conn().Close()
	}
	return ctx
}

func (*cutter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*cutter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*cutter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// Whichever statement of a run's bookkeeping finds its connection gone, the run
// hears nothing of it.
func TestEveryStatementMayBeCut(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(URLForTests(t))
	if err != nil {
		t.Fatal(err)
	}
	cut := &cutter{}
	config.ConnConfig.Tracer = cut
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := NewStore(pool, "executor", 15e9, zerolog.Nop())

	ops := map[string]func(context.Context, *Claim, place, sandbox.Ledger, sandbox.Entry) error{
		"reserve": func(ctx context.Context, c *Claim, _ place, l sandbox.Ledger, e sandbox.Entry) error {
			again, existed, err := l.Reserve(ctx, "p", e.Key)
			if err == nil && (!existed || again.ID != e.ID) {
				err = fmt.Errorf("it made %+v, %t", again, existed)
			}
			return err
		},
		"created": func(ctx context.Context, c *Claim, _ place, l sandbox.Ledger, e sandbox.Entry) error {
			return l.Created(ctx, e.ID, sandbox.Host{ID: "h"})
		},
		"releasing": func(ctx context.Context, c *Claim, _ place, l sandbox.Ledger, e sandbox.Entry) error {
			return l.Releasing(ctx, e.ID)
		},
		"released": func(ctx context.Context, c *Claim, _ place, l sandbox.Ledger, e sandbox.Entry) error {
			return l.Released(ctx, e.ID)
		},
		"output": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.appendOutput(ctx, c, p, 1, chunk{stream: sandbox.Stdout, data: []byte("x")})
		},
		"tail": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			_, err := s.storedTail(ctx, c, p, 1, sandbox.Stdout, 100)
			return err
		},
		"launches": func(ctx context.Context, c *Claim, _ place, _ sandbox.Ledger, _ sandbox.Entry) error {
			open, err := s.openLaunches(ctx, c)
			if err == nil && len(open) != 1 {
				err = fmt.Errorf("%d are open", len(open))
			}
			return err
		},
		"started": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.launchStarted(ctx, c, p, 1, time.Now())
		},
		"launch ends": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.endLaunch(ctx, c, p, 1, &sandbox.Exit{})
		},
		"succeeds": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.succeeded(ctx, c, p, 1, 1, sandbox.Exit{}, nil)
		},
		"run succeeds": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.Succeed(ctx, c)
		},
		"hands back": func(ctx context.Context, c *Claim, p place, _ sandbox.Ledger, _ sandbox.Entry) error {
			return s.HandBack(ctx, c, "test")
		},
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			for n := int32(1); ; n++ {
				c, p := newLaunch(t, s)
				l := s.Ledger(c, "m")
				e, _, err := l.Reserve(t.Context(), "p", sandbox.KeptKey(c.RunID.String()))
				if err != nil {
					t.Fatal(err)
				}
				cut.n.Store(n)
				err = op(t.Context(), c, p, l, e)
				reached := cut.n.Swap(0) <= 0
				if err != nil {
					t.Errorf("cut under statement %d: %v", n, err)
				}
				if !reached {
					if n == 1 {
						t.Error("nothing was cut")
					}
					return
				}
			}
		})
	}
}
