package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"github.com/moby/moby/client"
)

// dockerImage is what tests make containers of: busybox.
const dockerImage = "executor-test:cmd"

// dockerHost is the daemon to test with, once it has dockerImage. The error
// says what is missing.
var dockerHost = sync.OnceValues(func() (string, error) {
	if out, err := exec.Command("../../.ci/docker-image", dockerImage).CombinedOutput(); err != nil {
		return "", fmt.Errorf("no Docker: %w: %s", err, bytes.TrimSpace(out))
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host, nil
	}
	return client.DefaultDockerHost, nil
})
