package sandboxtest

import (
	"context"

	"executor/internal/sandbox"
)

// gate is a provider that says when one of its operations begins.
type gate struct {
	sandbox.Provider
	at    string
	enter func()
}

func (g *gate) pass(op string) {
	if g.at == op {
		g.enter()
	}
}

func (g *gate) Create(ctx context.Context, spec sandbox.HostSpec) (sandbox.Host, error) {
	g.pass("create")
	return g.Provider.Create(ctx, spec)
}

func (g *gate) Get(ctx context.Context, id string) (sandbox.Host, error) {
	g.pass("get")
	return g.Provider.Get(ctx, id)
}

func (g *gate) List(ctx context.Context) ([]sandbox.Host, error) {
	g.pass("list")
	return g.Provider.List(ctx)
}

func (g *gate) Delete(ctx context.Context, id string) error {
	g.pass("delete")
	return g.Provider.Delete(ctx, id)
}

func (g *gate) Dial(ctx context.Context, host sandbox.Host) (sandbox.Conn, error) {
	g.pass("dial")
	conn, err := g.Provider.Dial(ctx, host)
	if err != nil {
		return nil, err
	}
	return &gatedConn{conn, g}, nil
}

// RemoveKey implements sandbox.KeyRemover, where the provider does.
func (g *gate) RemoveKey(ctx context.Context, host sandbox.Host) error {
	if remover, ok := g.Provider.(sandbox.KeyRemover); ok {
		return remover.RemoveKey(ctx, host)
	}
	return nil
}

type gatedConn struct {
	sandbox.Conn
	gate *gate
}

func (c *gatedConn) Prepare(ctx context.Context) error {
	c.gate.pass("prepare")
	return c.Conn.Prepare(ctx)
}
