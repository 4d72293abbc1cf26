package docker

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox/docker/registrytest"
)

// loginDir is a directory with Docker's configuration file.
type loginDir string

func (d loginDir) file(t *testing.T, content string) Credentials {
	t.Helper()
	write(t, string(d)+"/config.json", content)
	return FileCredentials(string(d) + "/config.json")
}

// helper puts a helper on the PATH, and makes it that for all registries.
func (d loginDir) helper(t *testing.T, script string) Credentials {
	t.Helper()
	if err := os.WriteFile(string(d)+"/docker-credential-test", []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", string(d)+":"+os.Getenv("PATH"))
	return d.file(t, `{"credsStore":"test"}`)
}

func basic(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func auths(registry, user, password string) string {
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry, basic(user, password))
}

// A registry that asks who comes. What it is told stands in no log, no error
// and no list of processes.
func TestLogin(t *testing.T) {
	r := registrytest.Start(t, true)
	push(t, r, open(t).client, "image:1", "one")
	watchArguments(t, registrytest.Password)
	var log strings.Builder
	right, wrong := auths(r.Address, registrytest.User, registrytest.Password), auths(r.Address, registrytest.User, "wrong")
	answer := fmt.Sprintf(`{"ServerURL":"x","Username":%q,"Secret":%q}`, registrytest.User, registrytest.Password)
	for _, test := range []struct {
		name        string
		credentials func(*testing.T, loginDir) Credentials
		image       string
		kind        *faults.Kind
		permanent   bool
	}{
		// The daemon has no type for "it wants to know who you are".
		{"nobody", func(*testing.T, loginDir) Credentials { return nil }, "image:1", faults.SandboxImage, false},
		{"no file", func(_ *testing.T, d loginDir) Credentials { return FileCredentials(string(d) + "/none") }, "image:1", faults.SandboxImage, false},
		{"another's", func(t *testing.T, d loginDir) Credentials {
			return d.file(t, auths("registry.invalid", registrytest.User, registrytest.Password))
		}, "image:1", faults.SandboxImage, false},
		{"wrong", func(t *testing.T, d loginDir) Credentials { return d.file(t, wrong) }, "image:1", faults.SandboxImage, true},
		{"right, and no image", func(t *testing.T, d loginDir) Credentials { return d.file(t, right) }, "none:1", faults.SandboxImage, true},
		{"right", func(t *testing.T, d loginDir) Credentials { return d.file(t, right) }, "image:1", nil, false},
		{"ended, and there is a new one", func(t *testing.T, d loginDir) Credentials {
			asked := false
			return func(ctx context.Context, registry string) (Login, error) {
				content := right
				if !asked {
					asked, content = true, wrong
				}
				return d.file(t, content)(ctx, registry)
			}
		}, "image:1", nil, false},
		{"a helper's", func(t *testing.T, d loginDir) Credentials {
			return d.helper(t, `[ "$1" = get ] && [ "$(cat)" = `+r.Address+` ] && echo '`+answer+`'`)
		}, "image:1", nil, false},
		{"a helper that knows none", func(t *testing.T, d loginDir) Credentials {
			return d.helper(t, `echo credentials not found in native keychain; exit 1`)
		}, "image:1", faults.SandboxImage, false},
		{"a helper that fails, and talks", func(t *testing.T, d loginDir) Credentials {
			return d.helper(t, `echo '`+answer+`'; echo '`+answer+`' >&2; exit 1`)
		}, "image:1", faults.SandboxImage, false},
		{"a file that is none", func(t *testing.T, d loginDir) Credentials {
			return d.file(t, right+registrytest.Password)
		}, "image:1", faults.SandboxImage, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			credentials := test.credentials(t, loginDir(t.TempDir()))
			p := open(t, image(t, r.Image(test.image), PullMissing), func(c *Config) {
				c.Credentials, c.Log = credentials, zerolog.New(&log)
			})
			if test.kind != nil {
				fmt.Fprintln(&log, refusesImage(t, p, test.kind, test.permanent))
			} else if got := marker(t, p); got != "one" {
				t.Errorf("pulled %q", got)
			}
		})
	}
	for _, secret := range []string{registrytest.Password, basic(registrytest.User, registrytest.Password)} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q is said in: %s", secret, log.String())
		}
	}
	for _, text := range []string{"no login for the registry", "docker-credential-test get", "config.json"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("%q is not said in: %s", text, log.String())
		}
	}
}

func TestFileCredentials(t *testing.T) {
	t.Parallel()
	us := Login{Username: "us", Password: "a:b"}
	auth := basic("us", "a:b")
	for name, test := range map[string]struct {
		registry, file string
		want           Login
		fails          bool
	}{
		"by name":                 {"reg:5000", auths("reg:5000", "us", "a:b"), us, false},
		"by address":              {"reg:5000", auths("https://reg:5000/v1/", "us", "a:b"), us, false},
		"the name is stronger":    {"reg", `{"auths":{"https://reg":{"auth":"` + basic("x", "y") + `"},"reg":{"auth":"` + auth + `"}}}`, us, false},
		"another port":            {"reg:5000", auths("reg:5001", "us", "a:b"), Login{}, false},
		"another's beginning":     {"reg", auths("reg.example", "us", "a:b"), Login{}, false},
		"Docker's own":            {"docker.io", auths("https://index.docker.io/v1/", "us", "a:b"), us, false},
		"an identity token":       {"reg", `{"auths":{"reg":{"auth":"` + basic("us", "") + `","identitytoken":"t"}}}`, Login{Username: "us", IdentityToken: "t"}, false},
		"a registry token":        {"reg", `{"auths":{"reg":{"registrytoken":"t"}}}`, Login{RegistryToken: "t"}, false},
		"in plain text":           {"reg", `{"auths":{"reg":{"username":"us","password":"a:b"}}}`, us, false},
		"nothing":                 {"reg", `{"auths":{"reg":{}},"HttpHeaders":{"x":"y"}}`, Login{}, false},
		"another file":            {"reg", `{}`, Login{}, false},
		"no base64":               {"reg", `{"auths":{"reg":{"auth":"canary"}}}`, Login{}, true},
		"no password":             {"reg", `{"auths":{"reg":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("canary")) + `"}}}`, Login{}, true},
		"no JSON":                 {"reg", `{"auths":canary`, Login{}, true},
		"another JSON":            {"reg", `{"auths":"canary"}`, Login{}, true},
		"empty":                   {"reg", ``, Login{}, true},
		"a helper that is not":    {"reg", `{"credsStore":"executor-none"}`, Login{}, true},
		"another's helper":        {"reg", `{"credHelpers":{"other":"executor-none"},"auths":{"reg":{"auth":"` + auth + `"}}}`, us, false},
		"a helper of its own":     {"reg", `{"credHelpers":{"reg":"executor-none"},"auths":{"reg":{"auth":"` + auth + `"}}}`, Login{}, true},
		"Docker's helper, by URL": {"docker.io", `{"credHelpers":{"https://index.docker.io/v1/":"executor-none"}}`, Login{}, true},
	} {
		got, err := loginDir(t.TempDir()).file(t, test.file)(t.Context(), test.registry)
		if got != test.want || (err != nil) != test.fails || err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestHelpers(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   Login
		fails  bool
	}{
		"a password": {`echo '{"Username":"us","Secret":"s"}'`, Login{Username: "us", Password: "s"}, false},
		"a token":    {`echo '{"Username":"<token>","Secret":"s"}'`, Login{IdentityToken: "s"}, false},
		"Docker's":   {`[ "$(cat)" = https://index.docker.io/v1/ ] && echo '{"Username":"us","Secret":"s"}'`, Login{Username: "us", Password: "s"}, false},
		"none":       {`echo 'credentials not found in native keychain'; exit 1`, Login{}, false},
		"broken":     {`echo '{"Username":"us","Secret":"canary"}'; exit 1`, Login{}, true},
		"no JSON":    {`echo canary`, Login{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := loginDir(t.TempDir()).helper(t, test.script)(t.Context(), "docker.io")
			if got != test.want || (err != nil) != test.fails || err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		p := open(t, func(c *Config) { c.Credentials = loginDir(t.TempDir()).helper(t, `exec sleep 300`) })
		ctx := limited(t)
		if err := p.pull(ctx); err != context.Cause(ctx) {
			t.Error(err)
		}
	})
}

// A daemon with containerd's image store sends a login to the registry that has
// its address, and Docker's own has one of its own.
func TestLoginAddress(t *testing.T) {
	for image, want := range map[string]string{
		"debian":             "https://index.docker.io/v1/",
		"registry.invalid/x": "registry.invalid",
		"127.0.0.1:5000/x/y": "127.0.0.1:5000",
	} {
		p := open(t, func(c *Config) {
			c.Credentials = func(context.Context, string) (Login, error) { return Login{RegistryToken: "t"}, nil }
		})
		ref, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			t.Fatal(err)
		}
		header, err := p.login(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		got, err := authconfig.Decode(header)
		if err != nil || got.ServerAddress != want || got.RegistryToken != "t" {
			t.Errorf("%s: %+v, %v", image, got, err)
		}
	}
}
