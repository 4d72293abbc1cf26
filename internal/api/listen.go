package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// Listen opens the address for Serve. Without authentication nobody but this
// machine may connect: any address that is not loopback is refused, names that
// also resolve to another one included.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: expected host:port, such as 127.0.0.1:8080", addr)
	}
	if host == "" {
		return nil, fmt.Errorf("listen address %q would listen on every network; use 127.0.0.1:%s", addr, port)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	listen := ips[0]
	for _, ip := range ips {
		if ip = ip.Unmap(); !ip.IsLoopback() {
			return nil, fmt.Errorf("listen address %q is %s, which others can reach; there is no authentication yet, so only loopback is allowed: use 127.0.0.1:%s", addr, ip, port)
		}
		if ip.Is4() { // before ::1, where a name is both
			listen = ip
		}
	}
	// The address that was checked, and not the name a second time.
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(listen.String(), port))
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	shutdownGrace     = 5 * time.Second
)

// Serve answers on the listener until ctx ends, and then lets the requests
// under way end.
func Serve(ctx context.Context, listener net.Listener, h http.Handler, log zerolog.Logger) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("http: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		log.Warn().Err(err).Msg("requests under way are cut off")
		return server.Close()
	}
	return nil
}
