package docker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// authority signs certificates.
type authority struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

// make makes name.pem and name.key.
func (a *authority) make(name string, change func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.Helper()
	check := func(err error) {
		if err != nil {
			a.Helper()
			a.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	check(err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	change(template)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	write(a.T, a.dir+"/"+name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(a.T, a.dir+"/"+name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	cert, err := x509.ParseCertificate(der)
	check(err)
	return cert, key
}

func ours(c *x509.Certificate)    { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }
func expired(c *x509.Certificate) { ours(c); c.NotAfter = time.Now().Add(-time.Hour) }
func foreign(c *x509.Certificate) { c.DNSNames = []string{"elsewhere.invalid"} }

// files is the configuration of a client with a certificate; name "" has none.
func (a *authority) files(name string) func(*Config) {
	return func(c *Config) {
		c.CAFile = a.dir + "/ca.pem"
		if name != "" {
			c.CertFile, c.KeyFile = a.dir+"/"+name+".pem", a.dir+"/"+name+".key"
		}
	}
}

// daemon starts a daemon on TCP that shows a certificate and wants one.
func (a *authority) daemon(t *testing.T, cert string) *ownDaemon {
	t.Helper()
	address := "tcp://" + freeAddress(t)
	d := newDaemon(t)
	d.start("--tlsverify", "--tlscacert", a.dir+"/ca.pem", "--tlscert", a.dir+"/"+cert+".pem", "--tlskey", a.dir+"/"+cert+".key", "--host", address)
	d.address = address
	return d
}

// over changes the configuration of a provider to the daemon's TCP address.
func (d *ownDaemon) over(c *Config) { c.Host = d.address }

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestOverTLS(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	a.make("server", ours)
	a.make("client", ours)
	a.make("late", expired)
	other.make("client", ours)
	d := a.daemon(t, "server")
	d.image()
	through(t, open(t, d.over, a.files("client")))
	refuses(t, map[string]refusal{
		"no certificate of ours":       {faults.SandboxDenied, []func(*Config){d.over, a.files("")}},
		"one of another's":             {faults.SandboxDenied, []func(*Config){d.over, other.files("client"), func(c *Config) { c.CAFile = a.dir + "/ca.pem" }}},
		"one that has expired":         {faults.SandboxDenied, []func(*Config){d.over, a.files("late")}},
		"another authority":            {faults.SandboxDenied, []func(*Config){d.over, a.files("client"), func(c *Config) { c.CAFile = other.dir + "/ca.pem" }}},
		"the machine's authorities":    {faults.SandboxDenied, []func(*Config){d.over, a.files("client"), func(c *Config) { c.CAFile = "" }}},
		"no TLS":                       {faults.SandboxInvalid, []func(*Config){d.over}},
		"TLS, and the daemon has none": {faults.SandboxInvalid, []func(*Config){a.files("client"), func(c *Config) { c.Host = "tcp://" + newProxy(t).Address }}},
	})
	for name, change := range map[string]func(*x509.Certificate){"expired": expired, "foreign": foreign} {
		a.make(name, change)
		d := a.daemon(t, name)
		refuses(t, map[string]refusal{name: {faults.SandboxDenied, []func(*Config){d.over, a.files("client")}}})
	}
}

// refusal is a configuration, and the kind of fault that it ends in.
type refusal struct {
	kind   *faults.Kind
	config []func(*Config)
}

func refuses(t *testing.T, cases map[string]refusal) {
	t.Helper()
	for name, test := range cases {
		_, err := open(t, test.config...).Create(t.Context(), sandbox.HostSpec{Key: "key"})
		if f := faults.Of(err); f == nil || f.Kind != test.kind || f.Outcome != faults.NotStarted {
			t.Errorf("%s: %v, want %s before it started", name, err, test.kind.Code())
		}
	}
}
