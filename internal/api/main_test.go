package api_test

import (
	"os"
	"testing"

	"executor/internal/runs/runstest"
)

func TestMain(m *testing.M) { os.Exit(runstest.Main(m)) }
