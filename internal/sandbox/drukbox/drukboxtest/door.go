package drukboxtest

import (
	"fmt"
	"net"
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// door is a proxy in front of a host.
type door struct {
	proxy *toxiproxy.Proxy
	port  int
}

func newDoor(name string, upstream int) (*door, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, name, "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d", upstream))
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	addr, err := net.ResolveTCPAddr("tcp", proxy.Listen)
	if err != nil {
		return nil, err
	}
	return &door{proxy: proxy, port: addr.Port}, nil
}

// cut drops every connection and takes no new one.
func (d *door) cut() { d.proxy.Stop() }

func (d *door) mend() error { return d.proxy.Start() }

// slow delays and chops what comes from the host.
func (d *door) slow() error {
	for _, toxic := range []string{
		`{"name":"late","type":"latency","stream":"downstream","attributes":{"latency":50,"jitter":20}}`,
		`{"name":"chopped","type":"slicer","stream":"downstream","attributes":{"average_size":700,"size_variation":500,"delay":1}}`,
	} {
		if _, err := d.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return err
		}
	}
	return nil
}

// limit closes each connection after that many bytes from the host.
func (d *door) limit(bytes int) error {
	_, err := d.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"name":"limit","type":"limit_data","stream":"downstream","attributes":{"bytes":%d}}`, bytes)))
	return err
}

func (d *door) close() { d.proxy.Stop() }
