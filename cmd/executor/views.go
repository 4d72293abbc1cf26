package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"executor/internal/runs"
	"executor/internal/sandbox"
)

// jsonLines is the view for programs: one object a line.
type jsonLines struct{ enc *json.Encoder }

func newJSONLines(w io.Writer) *jsonLines {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &jsonLines{enc}
}

// line is one line of the stream. Type says which of the fields it has.
type line struct {
	Type string    `json:"type"` // event, attempt_began, attempt_ended, output, end
	At   time.Time `json:"at"`

	Event  string          `json:"event,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
	Step   string          `json:"step,omitempty"`
	Member string          `json:"member,omitempty"`

	Attempt *runs.AttemptDetail `json:"attempt,omitempty"`

	Launch int            `json:"launch,omitempty"`
	Stream sandbox.Stream `json:"stream,omitempty"`
	Pos    *int64         `json:"pos,omitempty"`
	Gap    int64          `json:"gap,omitempty"`    // bytes before it that were not kept
	Text   *string        `json:"text,omitempty"`   // where the bytes are UTF-8
	Base64 []byte         `json:"base64,omitempty"` // where they are not

	Run *runs.Detail `json:"run,omitempty"`
}

func (j *jsonLines) write(l line) { _ = j.enc.Encode(l) } // a reader that left ends us by SIGPIPE

func (j *jsonLines) event(e runs.Event) {
	j.write(line{Type: "event", At: e.At, Event: e.Kind, Data: e.Data})
}

func (j *jsonLines) began(step string, at runs.AttemptDetail) {
	j.write(line{Type: "attempt_began", At: at.StartedAt, Step: step, Member: at.Member, Attempt: &runs.AttemptDetail{Member: at.Member, N: at.N, StartedAt: at.StartedAt}})
}

func (j *jsonLines) finished(step string, at runs.AttemptDetail) {
	j.write(line{Type: "attempt_ended", At: *at.EndedAt, Step: step, Member: at.Member, Attempt: &at})
}

func (j *jsonLines) output(k runs.Chunk, gap int64) {
	l := line{Type: "output", At: k.At, Step: k.Step, Member: k.Member, Launch: k.Launch, Stream: k.Stream, Pos: &k.Pos, Gap: gap}
	if utf8.Valid(k.Data) {
		text := string(k.Data)
		l.Text = &text
	} else {
		l.Base64 = k.Data
	}
	j.write(l)
}

func (j *jsonLines) flush() {}

// end is the last line: the run as it ended.
func (j *jsonLines) end(d runs.Detail) error {
	l := line{Type: "end", Run: &d}
	if d.FinishedAt != nil {
		l.At = *d.FinishedAt
	}
	return j.enc.Encode(l)
}

// rawView writes the bytes as they are.
type rawView struct {
	noView
	w, note io.Writer
}

func (r *rawView) output(k runs.Chunk, gap int64) {
	if gap > 0 {
		fmt.Fprintf(r.note, "executor: %s %s: %s\n", placeName(k.Step, k.Member), k.Stream, describeGap(gap))
	}
	_, _ = r.w.Write(k.Data) // a reader that left ends us by SIGPIPE
}
