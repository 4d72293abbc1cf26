package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"executor/internal/sandbox"
	"executor/internal/sandbox/drukbox/drukboxtest"
)

// The providers that are measured, each with the bare tool beside it: the same
// command under the same isolation. An error says what is missing here.

// localBeside takes its bare tool, and all arguments of it, from a process that
// the provider runs.
func localBeside(cfg isolation) func(*testing.B) (beside, error) {
	return func(b *testing.B) (beside, error) {
		cfg.Isolation = "bwrap"
		provider, err := quiet(b).localProvider(b.Context(), cfg, filepath.Join(b.TempDir(), "hosts"), "bench", nil)
		if err != nil {
			return beside{}, err
		}
		host, err := provider.Create(b.Context(), sandbox.HostSpec{Key: "bare", RunID: "bare"})
		fatal(b, err)
		conn, err := provider.Dial(b.Context(), host)
		fatal(b, err)
		launch, runs := sandbox.Launch{RunID: "bare", Step: "bare", N: 1}, errors.New("it runs")
		_, err = conn.Start(b.Context(), launch, sandbox.Command{Argv: []string{"sh", "-c", "echo; exec sleep 1000"}})
		fatal(b, err)
		_, err = conn.Follow(b.Context(), launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return runs })
		if !errors.Is(err, runs) {
			b.Fatal(err)
		}
		argv := append(wrapperSeen(b, host.ID), greeting...)
		tool := "bwrap, with the arguments of ours"
		if cfg.Memory > 0 {
			tool = "bwrap in a cgroup, as ours"
		}
		return beside{Provider: provider, tool: tool, bare: func(sandbox.Host) (toolTook, error) { return bareTool(argv...) }}, nil
	}
}

// wrapperSeen is the command line around the command of a local host: its
// supervisor's, without the two shells of ours that run the same script.
func wrapperSeen(b *testing.B, host string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		argv := strings.Split(string(text), "\x00") // sh -c SCRIPT sh supervise DIR wrapper… sh -c SCRIPT sh command …
		if len(argv) < 6 || argv[4] != "supervise" || !strings.Contains(argv[5], host) {
			continue
		}
		rest := argv[6:]
		return rest[:slices.Index(rest, argv[2])-2]
	}
	b.Fatal("no supervisor is seen")
	return nil
}

func dockerBeside(b *testing.B) (beside, error) {
	daemon, err := dockerHost()
	if err != nil {
		return beside{}, err
	}
	var cfg providing
	cfg.Docker.Host, cfg.Docker.Image, cfg.Docker.Pull = daemon, dockerImage, "never"
	cfg.Docker.PIDs, cfg.Docker.Lease = 4096, 24*time.Hour // the defaults
	provider, err := quiet(b).dockerProvider(cfg, "bench-"+uuid.NewString())
	fatal(b, err)
	b.Cleanup(func() { _ = provider.Close() })
	return beside{Provider: provider, tool: "docker run, with the options of ours", bare: func(sandbox.Host) (toolTook, error) {
		name := "executor-bench-" + uuid.NewString()
		defer exec.Command("docker", "--host", daemon, "rm", "--force", name).Run()
		argv := []string{"docker", "--host", daemon, "run", "--name", name, "--init", "--network", "none", "--log-driver", "none",
			"--no-healthcheck", "--pids-limit", "4096", "--security-opt", "no-new-privileges", "--cap-drop", "ALL"}
		for _, kept := range []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "KILL"} {
			argv = append(argv, "--cap-add", kept)
		}
		return bareTool(append(append(argv, dockerImage), greeting...)...)
	}}, nil
}

// drukboxBeside goes to the host that ours has just made, with the same key.
func drukboxBeside(b *testing.B) (beside, error) {
	for _, program := range []string{"ssh", "bwrap", "/usr/sbin/sshd"} {
		if _, err := exec.LookPath(program); err != nil {
			return beside{}, err
		}
	}
	plane, dir := drukboxtest.New(b, drukboxtest.Options{}), b.TempDir()
	var made time.Duration
	plane.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPost || r.URL.Path != "/hosts" {
			return false
		}
		begun := time.Now()
		next.ServeHTTP(w, r)
		made = time.Since(begun)
		return true
	})
	b.Setenv("EXECUTOR_DRUKBOX_TOKEN", drukboxtest.Token)
	var cfg providing
	cfg.Drukbox.URL = plane.URL
	provider, err := quiet(b).drukboxProvider(cfg, dir, "bench")
	fatal(b, err)
	b.Cleanup(provider.Close)
	return beside{Provider: provider, tool: "ssh, to the same host", theirs: func() time.Duration { return made }, bare: func(host sandbox.Host) (toolTook, error) {
		var at struct {
			Host  string `json:"external_ssh_host"`
			Port  int    `json:"external_ssh_port"`
			User  string `json:"ssh_username"`
			Known string `json:"known_hosts"`
		}
		if err := ask(plane.URL+"/hosts/"+host.ID, &at); err != nil {
			return toolTook{}, err
		}
		known := filepath.Join(dir, "known_hosts")
		if err := os.WriteFile(known, []byte(at.Known), 0o600); err != nil {
			return toolTook{}, err
		}
		return bareTool(append([]string{"ssh", "-F", "none", "-i", filepath.Join(dir, "drukbox-keys", host.ID), "-o", "BatchMode=yes",
			"-o", "UserKnownHostsFile=" + known, "-p", strconv.Itoa(at.Port), at.User + "@" + at.Host}, greeting...)...)
	}}, nil
}

// ask asks the control plane.
func ask(url string, answer any) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+drukboxtest.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
