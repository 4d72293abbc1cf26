package runs

import "slices"

// Status is where a run stands. It is the truth about the run; River's job is
// only its delivery.
type Status string

const (
	Queued     Status = "queued"
	Running    Status = "running"
	BackingOff Status = "backing_off"
	Succeeded  Status = "succeeded"
	Failed     Status = "failed"
	Cancelled  Status = "cancelled"
)

// Statuses lists every status.
var Statuses = []Status{Queued, Running, BackingOff, Succeeded, Failed, Cancelled}

// Terminal reports whether a run in this status has ended.
func (s Status) Terminal() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Transition is one legal move of a run.
type Transition struct {
	From, To Status
	On       string // what moves it, for the diagram
}

// Transitions is the whole state machine. Every move is a compare-and-set
// whose FROM comes from here.
var Transitions = []Transition{
	{Queued, Running, "claimed"},
	{Queued, Cancelled, "cancel requested"},
	{Queued, Failed, "its job vanished"},
	{Running, Succeeded, "all steps done"},
	{Running, BackingOff, "transient fault"},
	{Running, Failed, "fatal or exhausted"},
	{Running, Cancelled, "cancel requested"},
	{BackingOff, Running, "retry_at reached"},
	{BackingOff, Cancelled, "cancel requested"},
	{BackingOff, Failed, "its job vanished"},
	{Failed, Queued, "retried by an operator"},
	{Cancelled, Queued, "retried by an operator"},
}

// Legal reports whether a run may move from one status to the other.
func Legal(from, to Status) bool {
	return slices.ContainsFunc(Transitions, func(t Transition) bool { return t.From == from && t.To == to })
}

// before lists the statuses from which a run may move to s.
func before(s Status) []string {
	var from []string
	for _, t := range Transitions {
		if t.To == s {
			from = append(from, string(t.From))
		}
	}
	return from
}
