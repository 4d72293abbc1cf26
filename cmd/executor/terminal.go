package main

import (
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"
)

// palette colours text, or leaves it alone.
type palette struct{ on bool }

func (p palette) wrap(code, s string) string {
	if !p.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) bold(s string) string   { return p.wrap("1", s) }
func (p palette) dim(s string) string    { return p.wrap("2", s) }
func (p palette) red(s string) string    { return p.wrap("31", s) }
func (p palette) green(s string) string  { return p.wrap("32", s) }
func (p palette) yellow(s string) string { return p.wrap("33", s) }
func (p palette) cyan(s string) string   { return p.wrap("36", s) }

// isTerminal reports whether w is a terminal that can move its cursor.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
}

// colours is the palette for w. NO_COLOR: see no-color.org.
func colours(w io.Writer) palette {
	return palette{isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

// widthOf is how many columns w has; 0 where it has no width.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// table prints rows aligned in columns.
type table struct {
	header []string
	rows   [][]cell
}

// cell is a text and how it is coloured. Padding is not.
type cell struct {
	text   string
	colour func(string) string
}

func plain(text string) cell { return cell{text, nil} }

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// print writes the table. The last column is wrapped where the terminal ends.
func (t *table) print(w io.Writer, p palette) {
	widths := make([]int, len(t.header))
	for i, h := range t.header {
		widths[i] = len(h)
	}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], runeCount(c.text))
		}
	}
	indent := 0
	for _, n := range widths[:len(widths)-1] {
		indent += n + 2
	}
	room := 0
	if columns := widthOf(w); columns > indent+20 {
		room = columns - indent
	}
	header := make([]cell, len(t.header))
	for i, h := range t.header {
		header[i] = cell{h, p.dim}
	}
	var out strings.Builder
	for _, row := range append([][]cell{header}, t.rows...) {
		last := len(row) - 1
		for i, c := range row[:last] {
			out.WriteString(paint(c, c.text) + strings.Repeat(" ", widths[i]-runeCount(c.text)+2))
		}
		for i, line := range wrap(row[last].text, room) {
			if i > 0 {
				out.WriteString(strings.Repeat(" ", indent))
			}
			out.WriteString(paint(row[last], line) + "\n")
		}
	}
	_, _ = io.WriteString(w, out.String())
}

func paint(c cell, text string) string {
	if c.colour == nil {
		return text
	}
	return c.colour(text)
}

func runeCount(s string) int { return len([]rune(s)) }

// wrap breaks text at spaces into lines of at most room; 0 is endless room.
func wrap(text string, room int) []string {
	if room == 0 || runeCount(text) <= room {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case runeCount(line)+1+runeCount(word) <= room:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
