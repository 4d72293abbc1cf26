package harness_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"executor/internal/faults"
	"executor/internal/harness"
)

func TestArgv(t *testing.T) {
	if got := harness.Argv([]string{"a", "b"}, ""); !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
	if got := harness.Argv(nil, "echo hi"); !slices.Equal(got, []string{"/bin/sh", "-c", "echo hi"}) {
		t.Error(got)
	}
}

func TestExitFault(t *testing.T) {
	for _, c := range []struct {
		code   int
		signal string
		want   *faults.Kind
	}{
		{0, "", nil}, {1, "", faults.CommandFailed}, {137, "", faults.CommandFailed},
		{137, "SIGKILL", faults.CommandKilled}, {0, "SIGTERM", faults.CommandKilled},
	} {
		err := harness.ExitFault(c.code, c.signal)
		if (err == nil) != (c.want == nil) || err != nil && faults.Of(err).Kind != c.want {
			t.Errorf("%d %q: %v", c.code, c.signal, err)
		}
		if err != nil && faults.Of(err).Outcome != faults.Done {
			t.Errorf("%d %q: the command has run", c.code, c.signal)
		}
	}
}

func TestLastJSON(t *testing.T) {
	big := `{"x": "` + strings.Repeat("y", harness.MaxResult) + `"}`
	for output, want := range map[string]string{
		"": "", "\n\n": "", "text\n": "", "{\"a\": 1}": `{"a": 1}`, "{\"a\": 1}\n\n  ": `{"a": 1}`,
		"{\"a\": 1}\n[2]\ndone\n": `[2]`, "42\n": "", "\"x\"\n": "", "{bad}\n{\"a\": 1}\n{worse\n": `{"a": 1}`,
		"half}\n": "", "\x00\xff{\"a\": 1}\n": "", "  {\"a\": 1}\r\n": `{"a": 1}`, "[1]\n" + big: "[1]",
	} {
		if got := string(harness.LastJSON([]byte(output))); got != want {
			t.Errorf("%.40q: got %.40q, want %q", output, got, want)
		}
	}
}

func TestFileResult(t *testing.T) {
	if got, err := harness.FileResult([]byte(" {\"a\": 1}\n")); err != nil || string(got) != `{"a": 1}` {
		t.Error(string(got), err)
	}
	for _, content := range []string{"", "  ", "text", "{", strings.Repeat("1", harness.MaxResult+1)} {
		if _, err := harness.FileResult([]byte(content)); faults.Of(err) == nil || faults.Of(err).Kind != faults.InvalidOutput {
			t.Errorf("%.20q: %v", content, err)
		}
	}
}

func FuzzLastJSON(f *testing.F) {
	f.Add([]byte("x\n{\"a\": 1}\ny"))
	f.Fuzz(func(t *testing.T, output []byte) {
		if got := harness.LastJSON(output); got != nil && (!json.Valid(got) || len(got) > harness.MaxResult) {
			t.Fatalf("%q", got)
		}
	})
}
