package sandbox

import (
	"errors"

	"executor/internal/faults"
)

// What a detached process prints lies in its run directory, and is kept from
// filling the disk by two means:
//
//	0            given back          taken - keepBehind   taken         size
//	|-- a hole --|------- kept -------|--- being stored ---|-- not read --|
//	             |------------------- at most the ceiling ----------------|
//
// Follow gives back, as a hole in the file, what lies well behind the newest
// byte that its sink has taken: taken is not stored, and a later follower
// starts where the stored bytes end, so that keepBehind is more than any sink
// may hold. How much is given back is written down before, so that nobody
// takes a hole for output. Where there are no holes everything is kept.
//
// A guard beside each Follow compares the rest with the ceiling, also while the
// sink blocks, and stops a process that is above it. That it did so is written
// down before: whoever follows then gets the same fault. Nobody guards a
// process that nobody follows, and what one has printed before it ended by
// itself is no reason to take its success away.
const (
	// DefaultOutputCeiling is how many bytes of a stream may lie on the disk.
	DefaultOutputCeiling = 1 << 30

	keepBehind = 64 << 20
	giveStep   = 16 << 20 // given back at once, so that it costs little
	holeAlign  = 64 << 10 // no file system has larger blocks
)

// GiveBack is how many bytes of a stream, from its beginning, are to be given
// back once the sink has taken the first taken of them. Until that is worth
// more than the given of an earlier time, it is given.
func GiveBack(taken, given int64) int64 {
	if upTo := (taken - keepBehind) &^ (holeAlign - 1); upTo-given >= giveStep {
		return upTo
	}
	return given
}

// NotKept is the fault of a Follow that asks for what was given back.
func NotKept(stream Stream, given int64) error {
	return faults.Errorf(faults.SandboxInvalid, "the first %d bytes of %s were given back, and are asked for", given, stream)
}

// OverCeiling is the fault of a process that was stopped for what it printed.
func OverCeiling() error {
	return faults.New(faults.SandboxDiskFull, "follow process",
		errors.New("it printed more than may lie on the disk at once, and was stopped")).
		With(func(f *faults.Fault) { f.Outcome, f.Permanent = faults.Done, true })
}
