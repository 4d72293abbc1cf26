// Package harness turns a step into a command line, and what the command did
// into a result or a fault. Its functions are pure: no I/O, no clock. It may
// import faults and nothing else of the project.
package harness

import (
	"bytes"
	"encoding/json"

	"executor/internal/faults"
)

// MaxResult is the largest result a step may have, in bytes.
const MaxResult = 1 << 20

// Argv is the command line of an exec step: argv as it is, or the script under
// /bin/sh.
func Argv(argv []string, shell string) []string {
	if shell != "" {
		return []string{"/bin/sh", "-c", shell}
	}
	return argv
}

// ExitFault is what the end of a command means for its step: nil for an exit
// status of 0. code is 128+n where signal n ended it, and signal its name,
// such as "SIGKILL"; empty: it exited by itself.
func ExitFault(code int, signal string) error {
	switch {
	case signal != "":
		return faults.Errorf(faults.CommandKilled, "the command was killed by %s", signal).With(done)
	case code != 0:
		return faults.Errorf(faults.CommandFailed, "the command ended with exit status %d", code).With(done)
	}
	return nil
}

func done(f *faults.Fault) { f.Outcome = faults.Done }

// LastJSON is the last line of a command's output that is a JSON object or
// array; nil where there is none. output may begin in the middle of a line.
func LastJSON(output []byte) json.RawMessage {
	for len(output) > 0 {
		output = bytes.TrimRight(output, " \t\r\n")
		line := output[bytes.LastIndexByte(output, '\n')+1:]
		output = output[:len(output)-len(line)]
		line = bytes.TrimSpace(line)
		if len(line) > 0 && len(line) <= MaxResult && (line[0] == '{' || line[0] == '[') && json.Valid(line) {
			return json.RawMessage(bytes.Clone(line))
		}
	}
	return nil
}

// FileResult is the content of the file that a step named as its result.
func FileResult(content []byte) (json.RawMessage, error) {
	content = bytes.TrimSpace(content)
	if len(content) > MaxResult {
		return nil, faults.Errorf(faults.InvalidOutput, "the result file has more than %d bytes", MaxResult)
	}
	if !json.Valid(content) {
		return nil, faults.Errorf(faults.InvalidOutput, "the result file is not JSON")
	}
	return json.RawMessage(content), nil
}
