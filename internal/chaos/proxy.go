package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// proxy stands between one executor and Postgres.
type proxy struct {
	server *toxiproxy.ApiServer
	name   string
	listen string
	target string
	now    *toxiproxy.Proxy
}

func newProxy(name string, target int) (*proxy, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{server: server, name: name, listen: "127.0.0.1:0", target: fmt.Sprintf("127.0.0.1:%d", target)}
	return p, p.open()
}

// open accepts connections, always on the same port.
func (p *proxy) open() error {
	fresh := toxiproxy.NewProxy(p.server, p.name, p.listen, p.target)
	if err := fresh.Start(); err != nil {
		return err
	}
	p.now, p.listen = fresh, fresh.Listen
	return nil
}

func (p *proxy) port() int {
	addr, _ := net.ResolveTCPAddr("tcp", p.listen)
	return addr.Port
}

// cut ends every connection and refuses new ones.
func (p *proxy) cut() { p.now.Stop() }

// delay makes every packet take about this long, in both directions together.
func (p *proxy) delay(d time.Duration) error {
	ms := d.Milliseconds() / 2
	return p.poison("latency", fmt.Sprintf(`{"latency": %d, "jitter": %d}`, ms, ms/2))
}

// swallow keeps connections open and lets nothing through.
func (p *proxy) swallow() error { return p.poison("timeout", `{"timeout": 0}`) }

func (p *proxy) poison(kind, attributes string) error {
	for _, stream := range []string{"upstream", "downstream"} {
		toxic := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": %s}`, kind, stream, attributes)
		if _, err := p.now.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return err
		}
	}
	return nil
}

// heal puts the connection right: what was cut is accepted again, and what is
// under a toxic is let go of. Where that hangs, a fresh proxy takes the port.
func (p *proxy) heal() error {
	old := p.now
	clean := make(chan struct{})
	go func() {
		old.Toxics.ResetToxics(context.Background())
		close(clean)
	}()
	select {
	case <-clean:
		if old.Enabled {
			return nil
		}
	case <-time.After(3 * time.Second):
		old.Stop()
	}
	return p.open()
}
