package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What a run prints, is named or fails with is foreign text: it must not move
// the reader's cursor, set a title or write what looks like ours.

// clean is one line of foreign text as a terminal may show it: control
// characters and what reorders text become visible escapes.
func clean(s string) string {
	if isClean(s) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			out.WriteRune(utf8.RuneError)
		case r == '\t' || r == '\n' || !isUnsafe(r):
			out.WriteString(s[i : i+size])
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		i += size
	}
	return out.String()
}

func isClean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && r != '\n' && isUnsafe(r) })
}

// isUnsafe: C0 and C1 controls, and format characters such as those that turn
// the direction of writing. The zero width joiner stays; emoji need it.
func isUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200d' || r == '\u2028' || r == '\u2029'
}

// sgr is an escape sequence that sets colours and nothing else.
var sgr = regexp.MustCompile(`\x1b\[[0-9;:]*m`)

// cleanOutput is clean for a line of output. Colours are kept where the reader
// has some, without concealed text, and end with the line.
func cleanOutput(line string, p palette) string {
	// A terminal would show what stands after the last carriage return.
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	if !strings.Contains(line, "\x1b") {
		return clean(line)
	}
	var out strings.Builder
	at := 0
	for _, m := range sgr.FindAllStringIndex(line, -1) {
		out.WriteString(clean(line[at:m[0]]))
		if code := line[m[0]:m[1]]; p.on && !conceals(code) {
			out.WriteString(code)
		}
		at = m[1]
	}
	out.WriteString(clean(line[at:]))
	if p.on {
		out.WriteString("\x1b[0m")
	}
	return out.String()
}

func conceals(sgr string) bool {
	for _, n := range strings.FieldsFunc(sgr[2:len(sgr)-1], func(r rune) bool { return r == ';' || r == ':' }) {
		if strings.TrimLeft(n, "0") == "8" {
			return true
		}
	}
	return false
}

// oneLine is clean for a cell of a table.
func oneLine(s string) string {
	return clean(strings.Join(strings.Fields(s), " "))
}
