package sandboxtest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Line is what stands between an executor and its hosts, and breaks.
type Line interface {
	// Cut ends every connection. New ones can be made.
	Cut()
	// Freeze keeps every connection, and lets nothing through until thaw.
	Freeze() (thaw func())
}

// Proxy is a Line of TCP connections to one address.
type Proxy struct {
	Address string // where it listens

	listener net.Listener
	network  string
	to       string

	mu    sync.Mutex
	conns map[net.Conn]bool
	flows chan struct{} // closed while something comes through
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(t testing.TB, network, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		Address: l.Addr().String(), listener: l, network: network, to: to,
		conns: map[net.Conn]bool{}, flows: make(chan struct{}),
	}
	close(p.flows)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.carry(in) })
		}
	})
	t.Cleanup(func() { l.Close(); p.Cut(); wg.Wait() })
	return p
}

// Cut implements Line. Peers see a reset, as on a broken path.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
		delete(p.conns, c)
	}
}

// Freeze implements Line.
func (p *Proxy) Freeze() (thaw func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	frozen := make(chan struct{})
	p.flows = frozen
	return sync.OnceFunc(func() { close(frozen) })
}

func (p *Proxy) carry(in net.Conn) {
	p.wait()
	out, err := net.Dial(p.network, p.to)
	if err != nil {
		in.Close()
		return
	}
	p.mu.Lock()
	p.conns[in], p.conns[out] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(flow{to, p}, from)
			if w, ok := to.(interface{ CloseWrite() error }); ok {
				_ = w.CloseWrite()
			}
		})
	}
	both.Wait()
	in.Close()
	out.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, in)
	delete(p.conns, out)
}

func (p *Proxy) wait() {
	p.mu.Lock()
	flows := p.flows
	p.mu.Unlock()
	<-flows
}

// flow hides what io.Copy would take a short cut by.
type flow struct {
	to io.Writer
	p  *Proxy
}

func (f flow) Write(b []byte) (int, error) {
	f.p.wait()
	return f.to.Write(b)
}
