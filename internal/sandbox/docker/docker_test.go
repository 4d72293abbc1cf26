package docker

import (
	"testing"

	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open: func(t *testing.T) sandbox.Provider {
			return open(t, func(cfg *Config) { cfg.Installation = "test-conformance" })
		},
	})
}
