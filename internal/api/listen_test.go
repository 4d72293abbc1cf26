package api_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"executor/internal/api"
)

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.1:8080", "[::ffff:10.0.0.1]:8080", "169.254.0.1:8080", "[fe80::1]:8080",
		"8080", "localhost", "", "no-such-host.invalid:80", "127.0.0.1:http:80",
	} {
		listener, err := api.Listen(t.Context(), addr)
		if err == nil {
			listener.Close()
			t.Errorf("%q is listened on", addr)
		} else if !strings.Contains(err.Error(), "listen address") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestListenAndServe(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "localhost:0", "127.1.2.3:0"} {
		listener, err := api.Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		if !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
			t.Errorf("%s became %s", addr, listener.Addr())
		}
		// The request under way is let end.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			_, _ = io.WriteString(w, "done")
		})
		served := make(chan error, 1)
		go func() { served <- api.Serve(ctx, listener, h, zerolog.Nop()) }()
		resp, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); string(body) != "done" {
			t.Errorf("got %q", body)
		}
		resp.Body.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
