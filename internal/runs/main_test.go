package runs_test

import (
	"os"
	"testing"

	"executor/internal/runs"
	"executor/internal/runs/runstest"
)

func TestMain(m *testing.M) {
	runs.URLForTests = runstest.URL
	os.Exit(runstest.Main(m))
}
