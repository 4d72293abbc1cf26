// Package faults names every way a run can fail. A kind carries the code that
// operators query and the policy that decides between a retry and the end of
// the run.
//
// Classify once, at the edge that knows (a provider, a harness), from typed
// evidence only: error types, errno, HTTP status and machine codes, never the
// text of a message. Keep the original error as the cause and do not classify
// again on the way up.
//
// The package imports the standard library only, so that everybody may name a
// fault.
package faults

import (
	"errors"
	"fmt"
	"time"
)

// Outcome says what is known of the operation that failed.
type Outcome string

const (
	Unknown    Outcome = "unknown"     // it may have happened: re-attach before doing it again
	NotStarted Outcome = "not_started" // it certainly did not happen
	Done       Outcome = "done"        // it happened, and then something failed
)

// Fault is an error with a kind.
type Fault struct {
	Kind       *Kind
	Op         string        // what was being done, such as "create host"
	Outcome    Outcome       // the zero value reads as Unknown
	RetryAfter time.Duration // what the provider asked for; 0: nothing
	ResetAt    time.Time     // when the provider's window turns; zero: not said
	Permanent  bool          // typed evidence that a retry cannot help, whatever the kind's policy
	Cause      error
}

// New returns a fault of the kind while op was being done, with its cause.
func New(kind *Kind, op string, cause error) *Fault {
	return &Fault{Kind: kind, Op: op, Cause: cause}
}

// Errorf returns a fault of the kind without an underlying error.
func Errorf(kind *Kind, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Cause: fmt.Errorf(format, args...)}
}

// With returns f after set changed it; for faults that say more than New takes.
func (f *Fault) With(set func(*Fault)) *Fault { set(f); return f }

// Error is for people: code, operation and cause.
func (f *Fault) Error() string {
	if detail := f.Detail(); detail != "" {
		return f.Kind.code + ": " + detail
	}
	return f.Kind.code
}

// Detail is Error without the code, for where the code stands beside it. It
// may be empty.
func (f *Fault) Detail() string {
	switch {
	case f.Cause == nil:
		return f.Op
	case f.Op == "":
		return f.Cause.Error()
	}
	return f.Op + ": " + f.Cause.Error()
}

// Is reports whether target is the fault's kind or a family above it.
func (f *Fault) Is(target error) bool { return f.Kind.Is(target) }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// Of returns the outermost fault in err's chain. An error that nobody
// classified is an Internal one; nil stays nil.
func Of(err error) *Fault {
	if err == nil {
		return nil
	}
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	var k *Kind
	if errors.As(err, &k) {
		return &Fault{Kind: k, Cause: err}
	}
	return &Fault{Kind: Internal, Cause: err}
}

// Classified reports whether somebody gave err a kind.
func Classified(err error) bool {
	var f *Fault
	return errors.As(err, &f)
}

// Link is one error of a chain, as data.
type Link struct {
	Code    string `json:"code,omitempty"` // of a fault; empty for any other error
	Message string `json:"message"`
}

// Chain is err and everything it wraps, outermost first, depth first where an
// error wraps several.
func Chain(err error) []Link {
	if err == nil {
		return nil
	}
	link := Link{Message: err.Error()}
	if f, ok := err.(*Fault); ok {
		link.Code = f.Kind.code
	}
	chain := []Link{link}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		chain = append(chain, Chain(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			chain = append(chain, Chain(sub)...)
		}
	}
	return chain
}
