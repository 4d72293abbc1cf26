package docker

import (
	"testing"

	"executor/internal/sandbox"
	"executor/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	ceiling := func(t *testing.T, bytes int64) sandbox.Provider {
		return open(t, func(cfg *Config) { cfg.Installation, cfg.OutputCeiling = "test-conformance", bytes })
	}
	sandboxtest.Suite(t, sandboxtest.Subject{
		Open:    func(t *testing.T) sandbox.Provider { return ceiling(t, 0) },
		Ceiling: ceiling, // nothing is given back: busybox cannot
	})
}
