package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"executor/internal/sandbox/docker/registrytest"
)

// Who has said "docker login" has said it to us. This is not parallel: what
// doctor leaves at the daemon is counted.
func TestDockerLogin(t *testing.T) {
	daemon, err := dockerHost()
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	registry := registrytest.Start(t, true)
	logins, image := t.TempDir(), registry.Image("agent:1")
	docker := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.Command("docker", append([]string{"--host", daemon, "--config", logins}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	docker(registrytest.Password, "login", "--username", registrytest.User, "--password-stdin", registry.Address)
	docker("", "tag", dockerImage, image)
	docker("", "push", image)
	docker("", "image", "rm", image)
	t.Cleanup(func() { _ = exec.Command("docker", "--host", daemon, "image", "rm", "--force", image).Run() })

	d := newDoctored(t, "EXECUTOR_PROVIDERS=docker", "EXECUTOR_DOCKER_HOST="+daemon, "EXECUTOR_DOCKER_IMAGE="+image)
	d.left = func() []string {
		return strings.Fields(docker("", "ps", "--all", "--quiet", "--filter", "ancestor="+image))
	}
	d.want(t, "sandbox_image", "provision", "DOCKER_CONFIG="+t.TempDir())
	d.want(t, "", "", "DOCKER_CONFIG="+logins)
	docker("", "image", "rm", image)
	d.want(t, "", "", "DOCKER_CONFIG=/nowhere", "EXECUTOR_DOCKER_CONFIG="+logins)
	docker("", "image", "rm", image)
	said := d.runIn("", append(d.env, "DOCKER_CONFIG="+logins, "EXECUTOR_LOG_LEVEL=trace"), "doctor")
	said.want(t, exitOK)
	if everything := said.stdout + said.stderr; strings.Contains(everything, registrytest.Password) {
		t.Errorf("the password is said in: %s", everything)
	}
}
