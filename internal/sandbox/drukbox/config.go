package drukbox

import (
	"net/http"
	"net/url"
	"time"

	"github.com/rs/zerolog"
)

// Config of a provider. URL, Token and KeyDir are needed.
type Config struct {
	URL      string // of the control plane, such as http://drukbox:8780
	Token    string // of a service account; secret
	KeyDir   string // holds private keys, one file per host; made if missing. For this control plane alone, and not shared between machines
	Machine  string // becomes Host.Machine of a host whose private key is in KeyDir
	Identity []byte // an OpenSSH private key that opens hosts for which the control plane mints none; secret. Empty: every host has to have its own

	Lease time.Duration // of a host, from its creation or renewal on; 0: DefaultLease

	// What is asked of the control plane for each host; its defaults where
	// they are empty. Env is in a file of the host that everybody there can
	// read.
	Backend      string // the control plane's own provider, such as hetzner
	Image        string
	InstanceType string
	DiskGB       int
	Env          map[string]string

	OutputCeiling int64 // bytes of a stream's output on a host's disk; see package remote. 0: 1 GiB

	Home string // HOME of commands, an absolute path in the host; empty: an empty directory of their own

	Proxy    func(*http.Request) (*url.URL, error) // to the control plane, such as http.ProxyFromEnvironment; nil: none
	Timeouts Timeouts                              // zero fields: DefaultTimeouts
	Log      zerolog.Logger
}

// DefaultLease is how long a host lives that nobody uses, where no step needs it
// for longer.
const DefaultLease = 2 * time.Hour

// Timeouts of what happens below an operation, which has its own deadline.
type Timeouts struct {
	Request   time.Duration // an HTTP request other than a create
	Connect   time.Duration // a TCP connection to a host
	Handshake time.Duration // from there to an SSH connection
	KeepAlive time.Duration // between questions whether a host is still there; after three without an answer it is not
	Reconnect time.Duration // how long Follow goes on without its host
	FirstWait time.Duration // before its first attempt to reconnect; doubled up to 30 s
}

// DefaultTimeouts are what an executor uses when nobody says otherwise.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		Request:   30 * time.Second,
		Connect:   10 * time.Second,
		Handshake: 20 * time.Second,
		KeepAlive: 15 * time.Second,
		Reconnect: 300 * time.Second,
		FirstWait: time.Second,
	}
}

func (t Timeouts) orDefault() Timeouts {
	d := DefaultTimeouts()
	for _, f := range []struct{ value, fallback *time.Duration }{
		{&t.Request, &d.Request}, {&t.Connect, &d.Connect}, {&t.Handshake, &d.Handshake}, {&t.KeepAlive, &d.KeepAlive},
	} {
		if *f.value == 0 {
			*f.value = *f.fallback
		}
	}
	return t
}
