package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"github.com/rs/zerolog"

	"executor/internal/faults"
	"executor/internal/sandbox"
	"executor/internal/sandbox/docker/registrytest"
)

// image is a configuration that pulls an image, which goes with the test.
func image(t *testing.T, name string, pull Pull) func(*Config) {
	c, err := client.New(client.WithHost(daemonHost()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	forget(t, c, name)
	return func(cfg *Config) { cfg.Image, cfg.Pull = name, pull }
}

// marker makes a container of the image, and says which content it has.
func marker(t *testing.T, p *Provider) string {
	t.Helper()
	host, conn := create(t, p)
	_, out := sh(t, conn, "cat /marker")
	if err := p.Delete(t.Context(), host.ID); err != nil {
		t.Error(err)
	}
	return out
}

// refusesImage fails the test unless an image cannot be had. It returns what is
// said of that.
func refusesImage(t *testing.T, p *Provider, kind *faults.Kind, permanent bool) error {
	t.Helper()
	host, err := p.Create(t.Context(), sandbox.HostSpec{Key: "key"})
	if err == nil {
		_ = p.Delete(t.Context(), host.ID)
	}
	f := faults.Of(err)
	if f == nil || f.Kind != kind || f.Permanent != permanent || f.Outcome != faults.NotStarted {
		t.Errorf("%v, want %s, permanent %t", err, kind.Code(), permanent)
	}
	if hosts, late := p.List(t.Context()); late != nil || len(hosts) != 0 {
		t.Errorf("left: %+v, %v", hosts, late)
	}
	return err
}

func TestPull(t *testing.T) {
	t.Parallel()
	r := registrytest.Start(t, false)
	c := open(t).client
	digest := push(t, r, c, "some/image:1", "one")
	missing := open(t, image(t, r.Image("some/image:1"), PullMissing))
	always := open(t, image(t, r.Image("some/image:1"), PullAlways))
	never := open(t, image(t, r.Image("some/image:1"), PullNever))

	refusesImage(t, never, faults.SandboxImage, true)
	if got := marker(t, missing); got != "one" {
		t.Errorf("pulled %q", got)
	}
	if got := marker(t, never); got != "one" {
		t.Errorf("has %q", got)
	}
	push(t, r, c, "some/image:1", "two") // and the daemon has neither now
	if got := marker(t, open(t, image(t, r.Image("some/image@"+digest), PullMissing))); got != "one" {
		t.Errorf("by digest: %q", got)
	}
	if got := marker(t, open(t, image(t, r.Image("some/image:1@"+digest), PullMissing))); got != "one" {
		t.Errorf("by tag and digest: %q", got)
	}
	if got := marker(t, missing); got != "two" {
		t.Errorf("pulled %q", got)
	}
	if _, err := c.ImageTag(t.Context(), client.ImageTagOptions{Source: r.Image("some/image@" + digest), Target: r.Image("some/image:1")}); err != nil {
		t.Fatal(err)
	}
	if got := marker(t, missing); got != "one" {
		t.Errorf("missing pulled %q, though there was one", got)
	}
	if got := marker(t, always); got != "two" {
		t.Errorf("always has %q, though the tag is another's", got)
	}

	for _, name := range []string{"some/none:1", "some/image:none", "some/image@sha256:" + strings.Repeat("0", 64)} {
		refusesImage(t, open(t, image(t, r.Image(name), PullMissing)), faults.SandboxImage, true)
	}
	r.Stop()
	if got := marker(t, missing); got != "two" {
		t.Errorf("has %q", got)
	}
	refusesImage(t, always, faults.SandboxImage, false)
	refusesImage(t, open(t, image(t, r.Image("some/none:1"), PullMissing)), faults.SandboxImage, false)
	refusesImage(t, open(t, image(t, "registry.invalid/some/image:1", PullMissing)), faults.SandboxImage, false)
}

// A registry of few words: what it answers to the look at an image decides.
func TestRegistryRefuses(t *testing.T) {
	t.Parallel()
	r := registrytest.Start(t, false)
	push(t, r, open(t).client, "image:1", t.Name())
	body := func(code string) string { return `{"errors":[{"code":"` + code + `","message":"some text"}]}` }
	for name, test := range map[string]struct {
		status    int
		body      string
		kind      *faults.Kind
		permanent bool
	}{
		"broken":                     {status: 500, kind: faults.SandboxImage},
		"away":                       {status: 503, kind: faults.SandboxImage},
		"unauthorized":               {status: 401, body: body("UNAUTHORIZED"), kind: faults.SandboxImage, permanent: true},
		"denied":                     {status: 403, body: body("DENIED"), kind: faults.SandboxImage, permanent: true},
		"unknown":                    {status: 404, body: body("MANIFEST_UNKNOWN"), kind: faults.SandboxImage, permanent: true},
		"too many":                   {status: 429, body: body("TOOMANYREQUESTS"), kind: faults.SandboxThrottled},
		"too many, and says denied":  {status: 403, body: body("TOOMANYREQUESTS"), kind: faults.SandboxThrottled},
		"too many, and says no more": {status: 429, kind: faults.SandboxImage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := r.Behind(t, func(w http.ResponseWriter, request *http.Request) bool {
				if !strings.Contains(request.URL.Path, "/manifests/") {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
				return true
			})
			refusesImage(t, open(t, image(t, address+"/image:1", PullMissing)), test.kind, test.permanent)
		})
	}
}

// A layer that breaks off, or stands still.
func TestPullInTheMiddle(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "--max-download-attempts", "1")
	r := registrytest.Start(t, false)
	p := open(t, d.at)
	big := make([]byte, 4<<20)
	_, _ = rand.Read(big)
	push(t, r, p.client, "image:1", string(big))
	halfway := func(then func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, request *http.Request) bool {
			if request.Method != http.MethodGet || !strings.Contains(request.URL.Path, "/blobs/") {
				return false
			}
			got, err := http.Get("http://" + r.Address + request.URL.Path)
			if err != nil {
				t.Error(err)
				return true
			}
			defer got.Body.Close()
			if got.ContentLength < int64(len(big)) { // not the layer
				_, _ = io.Copy(w, got.Body)
				return true
			}
			w.Header().Set("Content-Length", fmt.Sprint(got.ContentLength))
			_, _ = io.CopyN(w, got.Body, got.ContentLength/2)
			_ = http.NewResponseController(w).Flush()
			then(w, request)
			return true
		}
	}

	t.Run("breaks off", func(t *testing.T) {
		address := r.Behind(t, halfway(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		refusesImage(t, open(t, d.at, image(t, address+"/image:1", PullMissing)), faults.SandboxImage, false)
	})
	t.Run("stands still", func(t *testing.T) {
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var stopped time.Time
		over := make(chan struct{}) // a daemon may hold on to the connection for longer than to the pull
		address := r.Behind(t, halfway(func(http.ResponseWriter, *http.Request) {
			stopped = time.Now()
			cancel(enough)
			<-over
		}))
		defer close(over)
		p := open(t, d.at, image(t, address+"/image:1", PullMissing))
		_, err := p.Create(ctx, sandbox.HostSpec{Key: "key"})
		if took := time.Since(stopped); err != enough || took > 2*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		d.hasNothingOf(p, address)
		if hosts, err := p.List(t.Context()); err != nil || len(hosts) != 0 {
			t.Errorf("left: %+v, %v", hosts, err)
		}
	})
	t.Run("goes on", func(t *testing.T) {
		var log strings.Builder
		p := open(t, d.at, image(t, r.Image("image:1"), PullMissing), func(c *Config) { c.Log = zerolog.New(&log) })
		p.progressEvery = 0
		if got := marker(t, p); got != string(big) {
			t.Errorf("%d bytes, want %d, or other ones", len(got), len(big))
		}
		if !strings.Contains(log.String(), `"status":"Pull complete","layers":`) {
			t.Errorf("logged: %s", log.String())
		}
	})
}

// hasNothingOf waits until no file of a pull is left.
func (d *ownDaemon) hasNothingOf(p *Provider, registry string) {
	d.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		files, err := filepath.Glob(d.dir + "/data/tmp/*")
		if err != nil {
			d.Fatal(err)
		}
		found, err := p.client.ImageList(d.Context(), client.ImageListOptions{Filters: make(client.Filters).Add("reference", registry+"/*")})
		if err != nil {
			d.Fatal(err)
		}
		if len(files) == 0 && len(found.Items) == 0 {
			return
		}
		if time.Since(began) > 10*time.Second {
			d.Fatalf("left: %q, %+v", files, found.Items)
		}
	}
}

func TestProgress(t *testing.T) {
	var p progress
	for _, message := range []jsonstream.Message{
		{ID: "1", Status: "Pulling from image"},
		{ID: "a", Status: "Pulling fs layer", Progress: &jsonstream.Progress{}},
		{ID: "a", Status: "Downloading", Progress: &jsonstream.Progress{Current: 10, Total: 100}},
		{ID: "b", Status: "Downloading", Progress: &jsonstream.Progress{Current: 50, Total: 50}},
		{ID: "a", Status: "Downloading", Progress: &jsonstream.Progress{Current: 70, Total: 100}},
		{ID: "b", Status: "Extracting", Progress: &jsonstream.Progress{Current: 1, Total: 50}},
		{ID: "c", Status: "Extracting", Progress: &jsonstream.Progress{Current: 1}},
	} {
		p.see(message)
	}
	var log strings.Builder
	logger := zerolog.New(&log)
	logger.Log().EmbedObject(&p).Send()
	if want := `{"status":"Extracting","layers":2,"bytes":120,"of":150}` + "\n"; log.String() != want {
		t.Errorf("%s, want %s", log.String(), want)
	}
}
