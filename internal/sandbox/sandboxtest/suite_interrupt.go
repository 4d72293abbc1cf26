package sandboxtest

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// errEnough is why the tests cancel.
var errEnough = errors.New("enough")

// unharmed checks that the host is of use, and that nothing is left in it.
func (u *user) unharmed() {
	u.Helper()
	u.allDead()
	u.asBefore()
}

// noHalfFile checks what is left of an upload.
func (u *user) noHalfFile() {
	u.Helper()
	var out string
	if !eventually(func() bool {
		out = u.sh("ls -A | grep -c upload; [ ! -e file ] || stat -c %s file; rm -f file")
		return out == "0\n" || out == "0\n4194304\n"
	}) {
		u.Errorf("left %q", out)
	}
}

var interruptTests = map[string]func(*testing.T, Subject){
	"hosts":     func(t *testing.T, s Subject) { interrupt(t, s, hostOperations) },
	"processes": func(t *testing.T, s Subject) { interrupt(t, s, processOperations) },
	"what does not end": func(t *testing.T, s Subject) {
		u := newUser(t, s, s.Open(t))
		for _, op := range slices.Concat(unending, lasting) {
			op.endless = true
			if op.limit != nil {
				u.late(op, 200*time.Millisecond)
			} else {
				u.cancelled(op, 200*time.Millisecond)
			}
		}
		u.unharmed()
	},
}

// interrupt cancels operations in their middle, and gives them too short a time.
// They may be faster.
func interrupt(t *testing.T, s Subject, operations []operation) {
	u := newUser(t, s, s.Open(t))
	for _, op := range operations {
		takes := u.timed(op)
		u.cancelled(op, takes/2)
		u.late(op, takes*2/3)
	}
	u.unharmed()
}
