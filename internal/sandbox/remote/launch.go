package remote

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"executor/internal/sandbox"
)

const (
	// maxString is Linux's MAX_ARG_STRLEN, less its NUL: no argument or variable
	// is longer. maxTotal is what all of them may take, of 2 MiB, with our own.
	maxString = 128<<10 - 1
	maxTotal  = 2<<20 - 128<<10
)

// runDir stands for the run directory, which only the host knows.
const runDir = "\x00dir"

// header is the shell text that remote.sh reads: $at is the directory, and
// launch becomes the command. argv is what supervises or runs it, and mark is
// shell text for the mark of its processes.
func (c *Conn) header(cmd sandbox.Command, mark string, argv []string) (string, error) {
	if len(cmd.Argv) == 0 || cmd.Argv[0] == "" {
		return "", invalid("a command needs a program")
	}
	dir := path.Clean("./" + cmd.Dir)
	if strings.ContainsRune(cmd.Dir, 0) || cmd.Dir != "" && !filepath.IsLocal(cmd.Dir) {
		return "", invalid("working directory %q is not below the host's", cmd.Dir)
	}
	total := 0
	for _, s := range cmd.Argv {
		if strings.ContainsRune(s, 0) {
			return "", invalid("an argument holds a NUL byte")
		}
		if len(s) > maxString {
			return "", invalid("an argument has %d bytes", len(s))
		}
		total += len(s) + 9
	}
	var text strings.Builder
	text.WriteString("at=" + quote(dir) + "\nlaunch() {\nunset " + helperMark + "\n")
	text.WriteString("export HOME=\"$home\" TMPDIR=\"$tmp\" LANG=C.UTF-8\n")
	for _, name := range slices.Sorted(maps.Keys(cmd.Env)) {
		value := cmd.Env[name]
		if !sandbox.ValidEnv(name) || strings.ContainsRune(value, 0) || len(name)+len(value) >= maxString {
			return "", invalid("%q cannot be an environment variable", name)
		}
		total += len(name) + len(value) + 10
		text.WriteString("export " + name + "=" + quote(value) + "\n")
	}
	if total > maxTotal {
		return "", invalid("arguments and environment have %d bytes", total)
	}
	text.WriteString("export " + sandbox.MarkLaunch + "=" + mark + " " + sandbox.MarkSupervisor + "=1\nexec $setsid $setsid")
	for _, arg := range argv {
		text.WriteString(" ")
		text.WriteString(quote(arg))
	}
	text.WriteString("\n}\n")
	return text.String(), nil
}

// quote makes one word of s for a shell.
func quote(s string) string {
	if s == runDir {
		return `"$dir"`
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
