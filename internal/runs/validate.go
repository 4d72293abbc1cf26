package runs

import (
	"encoding/base64"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// Limits of a spec. They keep a run within what Linux, Postgres and a reader
// can take: an argument or variable of more than 128 KiB cannot be passed to a
// program at all.
const (
	MaxSpecBytes  = 16 << 20
	maxSteps      = 100
	maxMembers    = 32
	maxFiles      = 1000
	maxArgs       = 10_000
	maxArg        = 128<<10 - 1
	maxPath       = 4096
	maxTimeout    = 365 * 24 * time.Hour
	maxStopGrace  = 10 * time.Minute
	maxRetryDelay = 24 * time.Hour
	maxDelays     = 20
	maxProblems   = 100
)

var envRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Validate checks everything that can be known before a run starts. The error
// is a *SpecError.
func (s *Spec) Validate() error {
	v := &validator{}
	v.text("name", s.Name, 200)
	if s.Provider != "" && !sandbox.ValidName(s.Provider) {
		v.add("provider", "expected the name of a provider")
	}
	if s.Sandbox != "" && s.Sandbox != Ephemeral && s.Sandbox != Kept {
		v.add("sandbox", `expected "ephemeral" or "kept", got %q`, clip(s.Sandbox, 40))
	}
	v.env("env", s.Env)
	v.duration("timeout", s.Timeout, 0, maxTimeout)
	if s.StopGrace != nil {
		v.duration("stop_grace", *s.StopGrace, 0, maxStopGrace)
	}
	v.retry(s.Retry)
	if n := len(s.Steps); n == 0 || n > maxSteps {
		v.add("steps", "expected 1 to %d steps, got %d", maxSteps, n)
	} else {
		v.steps("steps", s.Steps, s.Kept(), false)
	}
	if len(v.problems) > 0 {
		return &SpecError{v.problems}
	}
	return nil
}

type validator struct{ problems []Problem }

func (v *validator) add(field, format string, args ...any) {
	if len(v.problems) == maxProblems {
		return // nobody reads more
	}
	v.problems = append(v.problems, Problem{field, fmt.Sprintf(format, args...)})
}

func (v *validator) steps(field string, steps []Step, kept, members bool) {
	seen := map[string]bool{}
	for i, step := range steps {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case step.Name == "":
			v.add(at+".name", "expected a name")
		case !sandbox.ValidName(step.Name):
			v.add(at+".name", "expected 1 to 64 letters, digits, '_', '.' or '-', got %q", clip(step.Name, 80))
		case seen[step.Name]:
			v.add(at+".name", "%q is the name of an earlier step", step.Name)
		case kept && !members && step.Name == "sandbox":
			v.add(at+".name", `"sandbox" cannot name a step of a run that keeps its sandbox`)
		}
		seen[step.Name] = true
		v.command(at, step, members)
	}
}

func (v *validator) command(at string, step Step, member bool) {
	given := 0
	for _, is := range []bool{step.Argv != nil, step.Shell != "", step.Parallel != nil} {
		if is {
			given++
		}
	}
	switch {
	case member && step.Parallel != nil:
		v.add(at+".parallel", "commands inside parallel cannot be parallel themselves")
	case given != 1 && member:
		v.add(at, "expected one of argv and shell")
	case given != 1:
		v.add(at, "expected one of argv, shell and parallel")
	}
	if step.Argv != nil && (len(step.Argv) == 0 || step.Argv[0] == "") {
		v.add(at+".argv", "expected a program and its arguments")
	}
	if len(step.Argv) > maxArgs {
		v.add(at+".argv", "expected at most %d arguments, got %d", maxArgs, len(step.Argv))
		return
	}
	for i, arg := range step.Argv {
		v.text(fmt.Sprintf("%s.argv[%d]", at, i), arg, maxArg)
	}
	v.text(at+".shell", step.Shell, maxArg)
	v.env(at+".env", step.Env)
	v.duration(at+".timeout", step.Timeout, 0, maxTimeout)
	if step.Dir != "" {
		v.path(at+".dir", step.Dir)
	}
	if step.ResultFile != "" {
		v.path(at+".result_file", step.ResultFile)
	}
	v.text(at+".stdin", step.Stdin, MaxSpecBytes)
	if n := len(step.Files); n > maxFiles {
		v.add(at+".files", "expected at most %d files, got %d", maxFiles, n)
		return
	}
	for i, f := range step.Files {
		v.file(fmt.Sprintf("%s.files[%d]", at, i), f)
	}
	if step.Parallel == nil || member {
		return
	}
	if step.Stdin != "" || step.Dir != "" || step.Env != nil || step.Files != nil || step.ResultFile != "" || step.Timeout != 0 {
		v.add(at, "a parallel step takes only name and parallel; the rest belongs to its commands")
	}
	if n := len(step.Parallel); n == 0 || n > maxMembers {
		v.add(at+".parallel", "expected 1 to %d commands, got %d", maxMembers, n)
		return
	}
	v.steps(at+".parallel", step.Parallel, false, true)
}

func (v *validator) file(at string, f File) {
	if f.Path == "" {
		v.add(at+".path", "expected a path")
	} else {
		v.path(at+".path", f.Path)
	}
	if f.Content != "" && f.ContentBase64 != "" {
		v.add(at, "expected one of content and content_base64")
	}
	if strings.IndexByte(f.Content, 0) >= 0 {
		v.add(at+".content", "it holds a NUL byte; expected text, or the bytes in content_base64")
	}
	if _, err := base64.StdEncoding.DecodeString(f.ContentBase64); err != nil {
		v.add(at+".content_base64", "expected base64: %v", err)
	}
}

func (v *validator) retry(r Retry) {
	v.codes("retry.include", r.Include, true)
	v.codes("retry.exclude", r.Exclude, false)
	if len(r.Delays) > maxDelays {
		v.add("retry.delays", "expected at most %d delays, got %d", maxDelays, len(r.Delays))
	}
	for i, d := range r.Delays[:min(len(r.Delays), maxDelays)] {
		v.duration(fmt.Sprintf("retry.delays[%d]", i), d, 0, maxRetryDelay)
	}
}

func (v *validator) codes(field string, names []string, retried bool) {
	if n := len(faults.Kinds()); len(names) > n {
		v.add(field, "there are only %d codes, got %d", n, len(names))
		return
	}
	for i, name := range names {
		kind, ok := faults.ByCode(name)
		switch at := fmt.Sprintf("%s[%d]", field, i); {
		case !ok:
			v.add(at, "%q is not a failure code", clip(name, 40))
		case retried && kind.Final():
			v.add(at, "%q cannot be retried", name)
		}
	}
}

func (v *validator) env(field string, env map[string]string) {
	for name, value := range env {
		if !envRE.MatchString(name) {
			v.add(field, "%q is no name for a variable: expected letters, digits and '_'", clip(name, 80))
			continue
		}
		v.text(field+"."+name, value, maxArg-len(name))
	}
}

// text refuses what a program's argument and Postgres cannot hold. The value
// may be a secret: it is not repeated.
func (v *validator) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		v.add(field, "expected at most %d bytes, got %d", limit, len(s))
	case strings.IndexByte(s, 0) >= 0:
		v.add(field, "it holds a NUL byte")
	case !utf8.ValidString(s):
		v.add(field, "expected UTF-8")
	}
}

// path accepts what stays below the working directory.
func (v *validator) path(field, p string) {
	v.text(field, p, maxPath)
	if path.IsAbs(p) || strings.Contains(p, `\`) {
		v.add(field, "expected a relative path with '/', got %q", clip(p, 80))
	} else if clean := path.Clean(p); clean == ".." || strings.HasPrefix(clean, "../") {
		v.add(field, "%q leaves the working directory", clip(p, 80))
	}
}

func (v *validator) duration(field string, d Duration, least, most time.Duration) {
	if t := time.Duration(d); t < least || t > most {
		v.add(field, "expected a duration from %s to %s, got %s", least, most, t)
	}
}
