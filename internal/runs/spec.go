package runs

import (
	"encoding/base64"
	"fmt"
	"time"

	"executor/internal/faults"
)

// Spec is what a caller asks for: one or more steps and how to run them. Its
// JSON form is what the API, the CLI and enqueue_run take.
type Spec struct {
	Name      string            `json:"name,omitempty" doc:"For people; shown in lists." maxLength:"200"`
	Provider  string            `json:"provider,omitempty" doc:"Where hosts come from. Empty: the executor's default."`
	Sandbox   string            `json:"sandbox,omitempty" enum:"ephemeral,kept" doc:"ephemeral (default): a fresh host for each step. kept: one host for all steps."`
	Offline   bool              `json:"offline,omitempty" doc:"Cut the steps off from the network, where the provider can."`
	Env       map[string]string `json:"env,omitempty" doc:"Environment of every step. Never shown again."`
	Timeout   Duration          `json:"timeout,omitzero" doc:"Limit for the whole run from its first start, waits included, such as \"2h\"."`
	StopGrace *Duration         `json:"stop_grace,omitempty" doc:"Between TERM and KILL when a process is stopped. Default 10s."`
	Retry     Retry             `json:"retry,omitzero" doc:"Changes to the retry policies of the failure codes."`
	Steps     []Step            `json:"steps" minItems:"1" maxItems:"100" doc:"Run one after the other. A finished step is never run again."`
}

// Step is one command, or several that run beside each other.
type Step struct {
	Name       string            `json:"name" doc:"Unique in the run: 1 to 64 letters, digits, '_', '.' or '-'."`
	Argv       []string          `json:"argv,omitempty" doc:"The program and its arguments. One of argv, shell and parallel is given."`
	Shell      string            `json:"shell,omitempty" doc:"A script for /bin/sh -c."`
	Parallel   []Step            `json:"parallel,omitempty" maxItems:"32" doc:"Commands that run at the same time and are one checkpoint."`
	Env        map[string]string `json:"env,omitempty" doc:"Added to the run's. Never shown again."`
	Dir        string            `json:"dir,omitempty" doc:"Working directory, relative to the host's."`
	Stdin      string            `json:"stdin,omitempty" doc:"What the command reads."`
	Timeout    Duration          `json:"timeout,omitzero" doc:"Limit from the start of the process, such as \"10m\"."`
	Files      []File            `json:"files,omitempty" doc:"Written into the host before the command starts."`
	ResultFile string            `json:"result_file,omitempty" doc:"A JSON file the command writes: the step's result. Default: the last line of its output that is JSON."`
}

// File is a file to upload.
type File struct {
	Path          string `json:"path" doc:"Relative to the host's working directory."`
	Content       string `json:"content,omitempty" doc:"The content as text."`
	ContentBase64 string `json:"content_base64,omitempty" doc:"The content as base64, for bytes."`
	Executable    bool   `json:"executable,omitempty"`
}

// Retry changes what is retried. Names are failure codes or families.
type Retry struct {
	Include []string   `json:"include,omitempty" doc:"Retried even where the code's policy is never."`
	Exclude []string   `json:"exclude,omitempty" doc:"Never retried; wins over include."`
	Delays  []Duration `json:"delays,omitempty" maxItems:"20" doc:"Replaces the schedule of transient codes: one retry per delay."`
}

// The modes of Spec.Sandbox.
const (
	Ephemeral = "ephemeral"
	Kept      = "kept"
)

const defaultStopGrace = 10 * time.Second

// Kept reports whether the run keeps one host across its steps.
func (s *Spec) Kept() bool { return s.Sandbox == Kept }

// Grace is how long a process gets between TERM and KILL.
func (s *Spec) Grace() time.Duration {
	if s.StopGrace == nil {
		return defaultStopGrace
	}
	return time.Duration(*s.StopGrace)
}

// Overrides are the run's wishes in the form that faults.Decide takes.
func (s *Spec) Overrides() faults.Overrides {
	o := faults.Overrides{Include: s.Retry.Include, Exclude: s.Retry.Exclude}
	for _, d := range s.Retry.Delays {
		o.Delays = append(o.Delays, time.Duration(d))
	}
	return o
}

// Redacted is s without the values that may be secret: fit for a page.
func (s Spec) Redacted() Spec {
	s.Env = redacted(s.Env)
	s.Steps = redactedSteps(s.Steps)
	return s
}

func redactedSteps(steps []Step) []Step {
	out := make([]Step, len(steps))
	for i, step := range steps {
		step.Env = redacted(step.Env)
		if step.Stdin != "" {
			step.Stdin = hidden
		}
		files := make([]File, len(step.Files))
		for j, f := range step.Files {
			files[j] = File{Path: f.Path, Executable: f.Executable}
		}
		step.Files = files
		if step.Parallel != nil {
			step.Parallel = redactedSteps(step.Parallel)
		}
		out[i] = step
	}
	return out
}

const hidden = "(hidden)"

func redacted(env map[string]string) map[string]string {
	if env == nil {
		return nil
	}
	out := make(map[string]string, len(env))
	for k := range env {
		out[k] = hidden
	}
	return out
}

// Bytes is the file's content. Validation has seen the base64.
func (f *File) Bytes() ([]byte, error) {
	if f.ContentBase64 == "" {
		return []byte(f.Content), nil
	}
	return base64.StdEncoding.DecodeString(f.ContentBase64)
}

// Duration is a time.Duration that reads and writes as "1h30m" in JSON.
type Duration time.Duration

const durationForm = `a duration such as "90s" or "1h30m"`

// UnmarshalText reads Go's notation for durations.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("expected %s, got %q", durationForm, clip(string(text), 40))
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes Go's notation.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }
