package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

const (
	tellQueuedAfter = 3 * time.Second
	maxPartial      = 32 << 10 // of a line that does not end
)

// screen is the view for people: a line for everything that happens, and on a
// terminal a last line that says what is going on now.
type screen struct {
	w      io.Writer
	p      palette
	live   bool // w can take back its last line
	width  int  // of the names before output lines
	status string
	queued bool // told that nobody has taken the run

	partial map[streamKey]*strings.Builder
	order   []streamKey
}

func newScreen(a *app) *screen {
	return &screen{w: a.out, p: a.p, live: isTerminal(a.out), partial: map[streamKey]*strings.Builder{}}
}

// line prints one line above the status.
func (s *screen) line(text string) {
	s.erase()
	_, _ = io.WriteString(s.w, text+"\n")
}

func (s *screen) erase() {
	if s.status != "" {
		_, _ = io.WriteString(s.w, "\r\x1b[K")
		s.status = ""
	}
}

// title is printed once, before anything else.
func (s *screen) title(d runs.Detail) {
	s.line(s.p.dim("run") + " " + s.p.bold(d.ID.String()) + "  " + oneLine(d.Name))
	for _, step := range d.Spec.Steps {
		s.width = max(s.width, len(step.Name))
		for _, m := range step.Parallel {
			s.width = max(s.width, len(placeName(step.Name, m.Name)))
		}
	}
	s.width = min(s.width, 24)
}

func (s *screen) event(e runs.Event) {
	var data struct {
		RetryAt *time.Time `json:"retry_at"`
		Crashes int        `json:"crashes"`
		Epoch   int        `json:"epoch"`
	}
	_ = json.Unmarshal(e.Data, &data) // what is missing is not said
	switch e.Kind {
	case "queued":
		if data.Epoch > 0 {
			s.note("queued again")
		}
	case "backing_off":
		if data.RetryAt != nil {
			s.note(s.p.yellow("backing off") + ", goes on at " + data.RetryAt.Local().Format(time.TimeOnly) + " (in " + span(time.Until(*data.RetryAt)) + ")")
		}
	case "handed_over":
		text := "its executor left; the process goes on, and the next executor continues the run"
		if data.Crashes > 0 {
			text = s.p.yellow("its executor died") + "; the next one continues the run"
		}
		s.note(text)
	case "claimed":
		s.note("another executor continues it")
	case "cancel_requested":
		s.note(s.p.yellow("its end was asked for"))
	}
}

func (s *screen) note(text string) { s.line(s.p.dim("·") + " " + text) }

func (s *screen) began(step string, at runs.AttemptDetail) {
	try := ""
	if at.N > 1 {
		try = s.p.dim(fmt.Sprintf(" (try %d)", at.N))
	}
	s.line(s.p.cyan("▶") + " " + s.p.bold(placeName(step, at.Member)) + try)
}

func (s *screen) finished(step string, at runs.AttemptDetail) {
	s.flush()
	mark, why := s.p.green("✓"), ""
	switch at.Outcome {
	case "failed":
		mark = s.p.red("✗")
		why = "  " + s.p.red(at.FailureCode)
		if text := strings.TrimPrefix(cause(at), at.FailureCode+": "); text != "" && text != at.FailureCode {
			why += "  " + text
		}
	case "cancelled", "interrupted":
		mark, why = s.p.yellow("■"), "  "+at.Outcome
	}
	s.line(mark + " " + s.p.bold(placeName(step, at.Member)) + "  " + s.p.dim(span(endOr(at.EndedAt, at.StartedAt).Sub(at.StartedAt))) + why)
}

func cause(at runs.AttemptDetail) string {
	if len(at.Causes) == 0 {
		return ""
	}
	return oneLine(at.Causes[0].Message)
}

// output prints the lines that are complete. stderr has another bar.
func (s *screen) output(k runs.Chunk, gap int64) {
	key := streamKey{k.Step, k.Member, k.Launch, k.Stream}
	rest, known := s.partial[key]
	if !known {
		rest = &strings.Builder{}
		s.partial[key] = rest
		s.order = append(s.order, key)
	}
	if gap > 0 {
		s.flushOne(key)
		s.printLine(key, s.p.yellow("["+describeGap(gap)+"]"))
	}
	text := string(k.Data)
	for {
		line, after, whole := strings.Cut(text, "\n")
		rest.WriteString(line)
		if !whole {
			break
		}
		s.printLine(key, cleanOutput(rest.String(), s.p))
		rest.Reset()
		text = after
	}
	if rest.Len() > maxPartial {
		s.flushOne(key)
	}
}

func (s *screen) printLine(key streamKey, text string) {
	bar := s.p.dim("│")
	if key.stream == sandbox.Stderr {
		bar = s.p.red("┃")
	}
	s.line("  " + s.p.dim(fmt.Sprintf("%*s", s.width, placeName(key.step, key.member))) + " " + bar + " " + text)
}

func (s *screen) flushOne(key streamKey) {
	if rest := s.partial[key]; rest.Len() > 0 {
		s.printLine(key, cleanOutput(rest.String(), s.p))
		rest.Reset()
	}
}

// flush prints the lines that nothing has ended.
func (s *screen) flush() {
	for _, key := range s.order {
		s.flushOne(key)
	}
	s.erase()
}

// progress shows what is going on now, on a terminal only.
func (s *screen) progress(d runs.Detail, since time.Duration) {
	if d.Status == runs.Queued && since > tellQueuedAfter && !s.queued {
		s.queued = true
		s.note("queued, and no executor has taken it yet; is one running? (executor dev, executor serve)")
	}
	if !s.live {
		return
	}
	text := "  " + string(d.Status)
	switch {
	case d.Status == runs.Running:
		for _, step := range d.Steps {
			for _, at := range step.Attempts {
				if at.EndedAt == nil {
					text += "  " + placeName(step.Name, at.Member) + " " + seconds(time.Since(at.StartedAt))
				}
			}
		}
	case d.RetryAt != nil:
		text += ", goes on in " + seconds(time.Until(*d.RetryAt))
	}
	if text == s.status {
		return
	}
	s.erase()
	s.status = text
	_, _ = io.WriteString(s.w, s.p.dim(text))
}

func seconds(d time.Duration) string { return max(d, 0).Truncate(time.Second).String() }

// end is the last word.
func (s *screen) end(d runs.Detail) {
	total := took(d.Summary, time.Now())
	id := d.ID.String()[:8]
	switch d.Status {
	case runs.Succeeded:
		s.line(s.p.green("✓ succeeded") + s.p.dim(" in "+total))
		if n := len(d.Steps); n > 0 && d.Steps[n-1].Result != nil {
			s.line("  result: " + shorten(clean(string(d.Steps[n-1].Result)), 400))
		}
	case runs.Failed:
		s.line(s.p.red("✗ failed: "+d.FailureCode) + s.p.dim(" in "+total))
		s.line("  " + shorten(clean(d.FailureMessage), 1000))
		s.line(s.p.dim("  see: executor runs show " + id + "   again: executor runs retry " + id + " --follow"))
	case runs.Cancelled:
		s.line(s.p.yellow("■ cancelled") + s.p.dim(" in "+total))
	}
}
