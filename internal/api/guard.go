package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard answers only to this machine's own programs and to pages that this
// server itself has served:
//
//   - The Host must name the loopback. A page whose own name was made to
//     resolve to 127.0.0.1 (DNS rebinding) sends that name.
//   - A browser must not act for another origin. Other ports of localhost are
//     other origins. Following a link to a page from elsewhere is fine.
func guard(next http.Handler) http.Handler {
	var crossOrigin http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		switch {
		case !loopbackHost(r.Host):
			writeProblem(w, http.StatusMisdirectedRequest, "the server answers only to localhost, 127.0.0.1 and [::1]")
		case crossOrigin.Check(r) != nil, crossSiteRead(r):
			writeProblem(w, http.StatusForbidden, "a page of another origin may not use this server")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// loopbackHost reports whether a Host header names this machine itself, with
// or without a port.
func loopbackHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}

// crossSiteRead reports whether a page of another origin fetches or embeds the
// answer. http.CrossOriginProtection lets reads pass.
func crossSiteRead(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none": // "": no browser
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}
