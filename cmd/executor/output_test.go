package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"executor/internal/runs"
)

// finished runs a shell script to its end and returns the run's id.
func (p place) finished(script string) string {
	p.t.Helper()
	return strings.Fields(p.must(exitOK, "run", "--", "sh", "-c", script).stdout)[1]
}

func TestLogsRaw(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	want := "\x1b[2Jred\x00\xff\xfe\r\nno newline"
	id := p.finished(`printf '\033[2Jred\000\377\376\r\nno newline'; printf err >&2`)
	if r := p.must(exitOK, "runs", "logs", id, "--raw", "--stream", "stdout"); r.stdout != want {
		t.Errorf("got %q, want %q", r.stdout, want)
	}
	if r := p.must(exitOK, "runs", "logs", id, "--raw", "--step", "sh", "--stream", "stderr", "--follow"); r.stdout != "err" {
		t.Errorf("stderr: %q", r.stdout)
	}
	if r := p.must(exitOK, "runs", "logs", id, "--step", "other"); r.stdout != "" {
		t.Errorf("another step: %q", r.stdout)
	}
	r := p.must(exitOK, "runs", "logs", id)
	if !strings.Contains(r.stdout, `\x1b[2Jred\x00��`) || !strings.Contains(r.stdout, "no newline\n") {
		t.Errorf("for a terminal: %q", r.stdout)
	}
}

func TestGapInOutputIsSaid(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	id := p.finished(`echo first; head -c 1000000 /dev/zero | tr '\0' 'x'; echo; echo last`)
	r := p.must(exitOK, "runs", "logs", id)
	for _, want := range []string{"│ first\n", "were not kept]", "│ last\n"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q", want)
		}
	}
	raw := p.must(exitOK, "runs", "logs", id, "--raw")
	if len(raw.stdout) >= 1_000_000 || !strings.Contains(raw.stderr, "were not kept") {
		t.Errorf("raw: %d bytes, stderr %q", len(raw.stdout), raw.stderr)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	decode := func(r result, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.stdout), into); err != nil {
			t.Fatalf("%v in %q", err, r.stdout)
		}
	}
	var lines []map[string]any
	for l := range strings.Lines(p.must(exitOK, "run", "--json", "--", "sh", "-c", `printf 'a\377'; echo '{"n":1}'`).stdout) {
		var m map[string]any
		decode(result{stdout: l}, &m)
		lines = append(lines, m)
	}
	last := lines[len(lines)-1]
	if last["type"] != "end" {
		t.Fatalf("the last line is %v", last)
	}
	id := last["run"].(map[string]any)["id"].(string)

	var summary runs.Summary
	decode(p.must(exitOK, "run", "--no-follow", "--json", "--", "true"), &summary)
	var list []runs.Summary
	decode(p.must(exitOK, "runs", "list", "--json"), &list)
	if len(list) == 0 {
		t.Error("the list is empty")
	}
	var detail runs.Detail
	decode(p.must(exitOK, "runs", "show", id, "--json"), &detail)
	if len(detail.Steps) != 1 || string(detail.Steps[0].Result) == "" && detail.Status != runs.Succeeded {
		t.Errorf("show: %+v", detail)
	}
	var codes []map[string]any
	decode(p.must(exitOK, "codes", "--json"), &codes)
	if len(codes) < 40 || codes[0]["code"] != "sandbox" {
		t.Errorf("codes: %v", codes)
	}
	var none []runs.Summary
	decode(p.must(exitOK, "runs", "list", "--json", "--code", "sandbox_image"), &none)
	var steps []migration
	decode(p.must(exitOK, "migrate", "status", "--json"), &steps)
	if len(steps) < 2 || !steps[0].Applied {
		t.Errorf("migrations: %v", steps)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	var d diagnosis
	if err := json.Unmarshal([]byte(p.must(exitOK, "doctor", "--json").stdout), &d); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range d.Checks {
		names = append(names, c.Name)
		if !c.OK {
			t.Errorf("%+v", c)
		}
	}
	want := "postgres migrations provider provision exec start re-attach release survival"
	if got := strings.Join(names, " "); got != want || !d.OK || len(d.Open) == 0 {
		t.Errorf("got %s, want %s; %+v", got, want, d)
	}
	if os.Getenv("CI") != "" && d.Isolation != "bwrap" {
		t.Error("bubblewrap is missing here: processes are not isolated")
	}
	r := p.must(exitTrouble, "--schema", "doctor", "doctor")
	if strings.Count(r.stdout, "FAIL") != 1 || !strings.Contains(r.stdout, "executor migrate up") || !strings.Contains(r.stdout, "not isolated") {
		t.Errorf("doctor says:\n%s", r.stdout)
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	p := world(t)
	p.t = t
	script := `printf '\033[32mgreen\033[0m \033]0;title\007\n'`
	onTerminal := func(env ...string) string {
		cmd := p.command(append(env, "TERM=xterm"), "run", "--", "sh", "-c", script)
		return runOnTerminal(t, cmd)
	}
	out := onTerminal()
	for _, want := range []string{"\x1b[32mgreen", `\x1b]0;title\x07`, "\x1b[32m✓"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	// What the cursor needs remains.
	if out := strings.ReplaceAll(onTerminal("NO_COLOR=1"), "\x1b[K", ""); strings.Contains(out, "\x1b") {
		t.Errorf("NO_COLOR: %q", out)
	}
}

// runOnTerminal runs cmd with a terminal of its own and returns what it shows.
func runOnTerminal(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil && os.Getenv("CI") != "" {
		t.Fatal("no terminals here:", err)
	}
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var shown strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		shown.Write(buf[:n])
		if err != nil { // EIO once nobody holds the other side
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %q", err, shown.String())
	}
	return shown.String()
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext":        "plain\ttext",
		"\x1b[2J":            `\x1b[2J`,
		"a\x00b\x7f":         `a\x00b\x7f`,
		"\u009b31m":          `\u009b31m`,
		"abc\u202edef":       `abc\u202edef`,
		"bad \xff utf":       "bad \ufffd utf",
		"famil\u200dy ünïcö": "famil\u200dy ünïcö",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"50%\r100%\r":       "100%",
		"\x1b[31mred":       "\x1b[31mred\x1b[0m",
		"\x1b[8mhidden":     "hidden\x1b[0m",
		"\x1b[1;31mx\x1b[K": "\x1b[1;31mx" + `\x1b[K` + "\x1b[0m",
	} {
		if got := cleanOutput(in, palette{true}); got != want {
			t.Errorf("cleanOutput(%q) = %q, want %q", in, got, want)
		}
		if got := cleanOutput(in, palette{}); strings.Contains(got, "\x1b") {
			t.Errorf("cleanOutput(%q) without colours = %q", in, got)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b]0;x\x07\u202e\xff\r\n")
	f.Fuzz(func(t *testing.T, in string) {
		out := cleanOutput(in, palette{})
		for _, r := range out {
			if r != '\t' && r != '\n' && isUnsafe(r) {
				t.Errorf("%q is in %q", r, out)
			}
		}
		if !utf8.ValidString(out) {
			t.Errorf("%q is not UTF-8", out)
		}
	})
}

func TestStepNameIsValid(t *testing.T) {
	for program, want := range map[string]string{"sh": "sh", "/usr/bin/go": "go", "./a b": "a-b", "sandbox": "command", "": "command", "…": "-", strings.Repeat("x", 99): strings.Repeat("x", 64)} {
		got := stepName(program)
		spec := runs.Spec{Steps: []runs.Step{{Name: got, Argv: []string{"true"}}}}
		if err := spec.Validate(); got != want || err != nil {
			t.Errorf("stepName(%q) = %q, want %q; %v", program, got, want, err)
		}
	}
}
