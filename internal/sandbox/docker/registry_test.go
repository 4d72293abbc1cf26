package docker

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"executor/internal/sandbox/docker/registrytest"
)

// push puts an image with a file marker of some content into a registry, and
// lets the daemon forget it. It returns the digest.
func push(t *testing.T, r *registrytest.Registry, c *client.Client, image, marker string) string {
	t.Helper()
	name := r.Image(image)
	archive, err := imageArchive(map[string]string{"marker": marker})
	if err != nil {
		t.Fatal(err)
	}
	var login registry.AuthConfig // a daemon wants one, whoever it is
	if r.Locked {
		login.Username, login.Password = registrytest.User, registrytest.Password
	}
	auth, err := authconfig.Encode(login)
	if err != nil {
		t.Fatal(err)
	}
	forget(t, c, name)
	done := func(stream io.ReadCloser, err error) {
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if said, err := io.ReadAll(stream); err != nil || bytes.Contains(said, []byte(`"error"`)) {
			t.Fatalf("%s, %v", said, err)
		}
	}
	done(c.ImageImport(t.Context(), client.ImageImportSource{Source: archive, SourceName: "-"}, name, client.ImageImportOptions{}))
	done(c.ImagePush(t.Context(), name, client.ImagePushOptions{RegistryAuth: auth}))
	found, err := c.ImageInspect(t.Context(), name)
	if err != nil || len(found.RepoDigests) != 1 {
		t.Fatal(found.RepoDigests, err)
	}
	if _, err := c.ImageRemove(t.Context(), name, client.ImageRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	_, digest, _ := strings.Cut(found.RepoDigests[0], "@")
	return digest
}

// forget removes an image when the test is over.
func forget(t *testing.T, c *client.Client, name string) {
	t.Cleanup(func() {
		_, _ = c.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
