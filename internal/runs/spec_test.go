package runs_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"executor/internal/runs"
)

func TestBadSpecsNameTheField(t *testing.T) {
	long := strings.Repeat("x", 128<<10)
	step := func(fields string) string { return `{"steps": [{"name": "a", ` + fields + `}]}` }
	for _, c := range []struct{ spec, field, message string }{
		{``, "", "it is not JSON"},
		{`{"steps": [`, "steps", "it is not JSON at byte"},
		{`[]`, "", "expected an object, got a JSON ["},
		{`null`, "steps", "expected 1 to 100 steps, got 0"},
		{`{}`, "steps", "expected 1 to 100 steps, got 0"},
		{`{"steps": {}}`, "steps", "expected an array, got a JSON {"},
		{`{"steps": []}`, "steps", "expected 1 to 100 steps, got 0"},
		{`{"stepz": []}`, "stepz", "there is no such field"},
		{`{"steps": [], "steps": []}`, "steps", "the field is given twice"},
		{`{"steps": [{"name": "a", "shell": "x"}], "name": "` + strings.Repeat("n", 201) + `"}`, "name", "expected at most 200 bytes, got 201"},
		{step(`"shel": "x"`), "steps[0].shel", "there is no such field"},
		{step(`"shell": 3`), "steps[0].shell", "expected a string, got a JSON number"},
		{step(`"timeout": 3`), "steps[0].timeout", "expected"},
		{step(`"shell": "x", "timeout": "soon"`), "steps[0].timeout", `expected a duration such as "90s" or "1h30m", got "soon"`},
		{step(`"shell": "x", "timeout": "-1s"`), "steps[0].timeout", "expected a duration from 0s"},
		{`{"steps": [{"shell": "x"}]}`, "steps[0].name", "expected a name"},
		{`{"steps": [{"name": "", "shell": "x"}]}`, "steps[0].name", "expected a name"},
		{`{"steps": [{"name": "a b", "shell": "x"}]}`, "steps[0].name", "expected 1 to 64 letters"},
		{`{"steps": [{"name": "` + strings.Repeat("a", 65) + `", "shell": "x"}]}`, "steps[0].name", "expected 1 to 64 letters"},
		{`{"steps": [{"name": "a", "shell": "x"}, {"name": "a", "shell": "y"}]}`, "steps[1].name", `"a" is the name of an earlier step`},
		{`{"sandbox": "kept", "steps": [{"name": "sandbox", "shell": "x"}]}`, "steps[0].name", `"sandbox" cannot name`},
		{`{"sandbox": "shared", "steps": [{"name": "a", "shell": "x"}]}`, "sandbox", `expected "ephemeral" or "kept", got "shared"`},
		{`{"steps": [{"name": "a"}]}`, "steps[0]", "expected one of argv, shell and parallel"},
		{step(`"shell": "x", "argv": ["y"]`), "steps[0]", "expected one of argv, shell and parallel"},
		{step(`"argv": []`), "steps[0].argv", "expected a program and its arguments"},
		{step(`"argv": ["a\u0000b"]`), "steps[0].argv[0]", "it holds a NUL byte"},
		{step(`"shell": "` + long + `"`), "steps[0].shell", "expected at most 131071 bytes, got 131072"},
		{step(`"shell": "x", "env": {"A=B": "x"}`), "steps[0].env", `"A=B" is no name for a variable`},
		{step(`"shell": "x", "env": {"SECRET": "a\u0000b"}`), "steps[0].env.SECRET", "it holds a NUL byte"},
		{step(`"shell": "x", "dir": "/etc"`), "steps[0].dir", `expected a relative path with '/', got "/etc"`},
		{step(`"shell": "x", "dir": "a/../../b"`), "steps[0].dir", "leaves the working directory"},
		{step(`"shell": "x", "result_file": "../x"`), "steps[0].result_file", "leaves the working directory"},
		{step(`"shell": "x", "files": [{"path": "C:\\x"}]`), "steps[0].files[0].path", "expected a relative path"},
		{step(`"shell": "x", "files": [{"path": "x", "content_base64": "?"}]`), "steps[0].files[0].content_base64", "expected base64"},
		{step(`"shell": "x", "files": [{"path": "x", "content": "a", "content_base64": "YQ=="}]`), "steps[0].files[0]", "expected one of content and content_base64"},
		{step(`"shell": "x", "stdin": "\u0000"`), "steps[0].stdin", "it holds a NUL byte"},
		{step(`"shell": "x", "files": [{"path": "x", "content": "\u0000"}]`), "steps[0].files[0].content", "it holds a NUL byte"},
		{`{"steps": [` + strings.Repeat(`{},`, 1_000_000) + `{}]}`, "steps", "expected 1 to 100 steps, got 1000001"},
		{step(`"parallel": []`), "steps[0].parallel", "expected 1 to 32 commands, got 0"},
		{step(`"parallel": [{"name": "b", "shell": "x"}, {"name": "b", "shell": "x"}]`), "steps[0].parallel[1].name", `"b" is the name of an earlier step`},
		{step(`"parallel": [{"name": "b", "parallel": [{"name": "c", "shell": "x"}]}]`), "steps[0].parallel[0].parallel", "cannot be parallel themselves"},
		{step(`"dir": "x", "parallel": [{"name": "b", "shell": "x"}]`), "steps[0]", "a parallel step takes only name and parallel"},
		{`{"retry": {"include": ["nope"]}, "steps": [{"name": "a", "shell": "x"}]}`, "retry.include[0]", `"nope" is not a failure code`},
		{`{"retry": {"include": ["orphaned"]}, "steps": [{"name": "a", "shell": "x"}]}`, "retry.include[0]", `"orphaned" cannot be retried`},
		{`{"retry": {"delays": ["48h"]}, "steps": [{"name": "a", "shell": "x"}]}`, "retry.delays[0]", "expected a duration from 0s to 24h"},
		{"{\"name\": \"\xff\", \"steps\": []}", "name", "it is not JSON at byte"},
	} {
		_, err := runs.ParseSpec([]byte(c.spec))
		var bad *runs.SpecError
		if !errors.As(err, &bad) {
			t.Errorf("%.80s: %v", c.spec, err)
			continue
		}
		if p := bad.Problems[0]; p.Field != c.field || !strings.Contains(p.Message, c.message) {
			t.Errorf("%.80s:\n got %s: %s\nwant %s: %s", c.spec, p.Field, p.Message, c.field, c.message)
		}
	}
}

func TestAllProblemsAreSaid(t *testing.T) {
	_, err := runs.ParseSpec([]byte(`{"sandbox": "x", "timeout": "-1s", "steps": [{"name": "", "shell": "x"}, {"name": "b"}]}`))
	var bad *runs.SpecError
	if !errors.As(err, &bad) || len(bad.Problems) != 4 {
		t.Errorf("%v", err)
	}
}

func TestNoSecretIsRepeated(t *testing.T) {
	const secret = "hunter2hunter2"
	_, err := runs.ParseSpec([]byte(`{"env": {"A": "` + secret + `\u0000"}, "steps": [{"name": "a", "shell": "x", "stdin": "` + secret + `", "env": {"B": "\u0000` + secret + `"}}]}`))
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
	spec, err := runs.ParseSpec([]byte(`{"env": {"A": "` + secret + `"}, "steps": [
		{"name": "a", "shell": "x", "stdin": "` + secret + `", "env": {"B": "` + secret + `"}, "files": [{"path": "x", "content": "` + secret + `"}]},
		{"name": "b", "parallel": [{"name": "c", "shell": "x", "env": {"D": "` + secret + `"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(spec.Redacted())
	if err != nil || strings.Contains(string(shown), secret) {
		t.Errorf("%s %v", shown, err)
	}
	if spec.Env["A"] != secret || spec.Steps[1].Parallel[0].Env["D"] != secret {
		t.Error("redaction changed the spec itself")
	}
}

func TestASpecSurvivesItsJSON(t *testing.T) {
	in := `{"name":"n","provider":"local","sandbox":"kept","offline":true,"env":{"A":"b"},"timeout":"1h0m0s","stop_grace":"0s","retry":{"include":["command_failed"],"exclude":["sandbox"],"delays":["1s"]},"steps":[{"name":"a","argv":["x"],"dir":"d","stdin":"s","timeout":"1m0s","files":[{"path":"p","content":"c","executable":true}],"result_file":"r"},{"name":"b","parallel":[{"name":"c","shell":"x"}]}]}`
	spec, err := runs.ParseSpec([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, string(out)); diff != "" {
		t.Error(diff)
	}
}

func TestTheExamplesAreValid(t *testing.T) {
	paths, err := filepath.Glob("../../examples/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no examples", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := runs.ParseSpec(data); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(`{"steps": [{"name": "a", "shell": "x", "timeout": "1s"}]}`))
	f.Add([]byte(`{"steps": [{"name": "a", "parallel": [{"name": "b", "argv": ["x"]}]}], "retry": {"delays": ["1s"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := runs.ParseSpec(data)
		var bad *runs.SpecError
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("an error that names no field: %v", err)
		}
		if err != nil {
			for _, p := range bad.Problems {
				if p.Message == "" || !utf8.ValidString(p.Message) {
					t.Fatalf("a problem without words: %+q", p)
				}
			}
			return
		}
		out, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := runs.ParseSpec(out); err != nil {
			t.Fatalf("a valid spec became invalid: %v\n%s", err, out)
		}
	})
}
