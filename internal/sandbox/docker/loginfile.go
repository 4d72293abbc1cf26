package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"
)

// FileCredentials are the logins of Docker's own configuration file, as "docker
// login" writes it: in the file itself (auths), or with a helper that it names
// for a registry (credHelpers) or for all (credsStore). The file is read at each
// pull; that there is none is nobody's fault.
//
// A helper is a program docker-credential-NAME on the PATH. It gets the registry
// on its stdin and answers on its stdout, so that no secret is among arguments.
// What else it says stays here, since it may be a secret.
func FileCredentials(path string) Credentials {
	return func(ctx context.Context, registry string) (Login, error) {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return Login{}, nil
		}
		if err != nil {
			return Login{}, err
		}
		var file loginFile
		if err := json.Unmarshal(content, &file); err != nil {
			return Login{}, fmt.Errorf("%s: %w", path, harmless(err))
		}
		if helper := file.helper(registry); helper != "" {
			return askHelper(ctx, helper, address(registry))
		}
		login, err := file.entry(registry).login()
		if err != nil {
			return Login{}, fmt.Errorf("%s: the login for %s: %w", path, registry, err)
		}
		return login, nil
	}
}

// loginFile is the part of Docker's configuration file that is about logins.
type loginFile struct {
	Auths       map[string]loginEntry `json:"auths"`
	CredsStore  string                `json:"credsStore"`
	CredHelpers map[string]string     `json:"credHelpers"`
}

type loginEntry struct {
	Auth          string `json:"auth"` // base64 of name:password
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// helper names the helper for a registry. A helper for one is stronger than
// that for all.
func (f loginFile) helper(registry string) string {
	for name, helper := range f.CredHelpers {
		if hostname(name) == hostname(address(registry)) {
			return helper
		}
	}
	return f.CredsStore
}

// entry is the login of a registry. The exact name is stronger than one with a
// scheme or a path.
func (f loginFile) entry(registry string) loginEntry {
	want := address(registry)
	if entry, ok := f.Auths[want]; ok {
		return entry
	}
	for name, entry := range f.Auths {
		if hostname(name) == hostname(want) {
			return entry
		}
	}
	return loginEntry{}
}

func (e loginEntry) login() (Login, error) {
	login := Login{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth == "" {
		return login, nil
	}
	decoded, err := base64.StdEncoding.DecodeString(e.Auth)
	name, password, ok := strings.Cut(string(decoded), ":")
	if err != nil || !ok {
		return Login{}, errors.New("expected auth to be base64 of name:password")
	}
	login.Username, login.Password = name, strings.TrimRight(password, "\x00")
	return login, nil
}

// address is a registry as logins name it.
func address(registry string) string {
	if registry == hub {
		return hubAuth
	}
	return registry
}

// hostname is the host and port of an address with or without scheme and path.
func hostname(address string) string {
	if _, after, ok := strings.Cut(address, "://"); ok {
		address = after
	}
	host, _, _ := strings.Cut(address, "/")
	return host
}

// harmless is an error of the decoder without what it has read.
func harmless(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("no JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("not what Docker writes at byte %d", kind.Offset)
	}
	return errors.New("no JSON")
}

// helperLimit is how long a helper may take; some ask a service of a cloud's.
const helperLimit = 30 * time.Second

// Words of the helpers' protocol: what stands for a name where the secret is an
// identity token, and the answer that there is no login.
const (
	helperToken = "<token>"
	helperNone  = "credentials not found in native keychain"
)

func askHelper(ctx context.Context, helper, server string) (Login, error) {
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	name := "docker-credential-" + helper
	cmd := exec.CommandContext(ctx, name, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		if string(bytes.TrimSpace(out)) == helperNone {
			return Login{}, nil
		}
		return Login{}, fmt.Errorf("%s get %s: %w", name, server, err)
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return Login{}, fmt.Errorf("%s get %s: %w", name, server, harmless(err))
	}
	if answer.Username == helperToken {
		return Login{IdentityToken: answer.Secret}, nil
	}
	return Login{Username: answer.Username, Password: answer.Secret}, nil
}
