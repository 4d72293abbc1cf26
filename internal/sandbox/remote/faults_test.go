package remote

import (
	"errors"
	"strings"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]struct {
		kind    *faults.Kind
		outcome faults.Outcome
	}{
		"invalid":           {faults.SandboxInvalid, faults.NotStarted},
		"denied":            {faults.SandboxDenied, faults.NotStarted},
		"unprepared":        {faults.SandboxNotFound, faults.NotStarted},
		"cut":               {faults.SandboxUnavailable, faults.NotStarted},
		"outlived 7 8":      {faults.SandboxTimeout, faults.Unknown},
		"lost":              {faults.SandboxLost, faults.Unknown},
		"none":              {faults.SandboxLost, faults.Unknown},
		"":                  {faults.SandboxLost, faults.Unknown},
		"words of tomorrow": {faults.SandboxLost, faults.Unknown},
		"failed write":      {faults.SandboxDenied, faults.NotStarted},
	} {
		f := faults.Of(answerOf(said).fault("op"))
		if f.Kind != want.kind || f.Outcome != want.outcome {
			t.Errorf("%q: %v, outcome %q, want %s, %q", said, f, f.Outcome, want.kind.Code(), want.outcome)
		}
	}
	if err := answerOf("ok").expect("op", "ok"); err != nil {
		t.Errorf("what is expected is %v", err)
	}
}

// What a write failed of is told by the room that is left.
func TestFailure(t *testing.T) {
	for said, want := range map[string]*faults.Kind{
		"mkdir":                       faults.SandboxDenied, // no stat there
		"mkdir closed":                faults.SandboxDenied,
		"mkdir full":                  faults.SandboxDiskFull,
		"mkdir 1000000 4096 0 0 fits": faults.SandboxDenied,
		"mkdir 1000000 4096 0 0 full": faults.SandboxDiskFull, // a quota
		"mkdir 1000000 4096 500 900":  faults.SandboxDenied,
		"mkdir 1000000 4096 0 0":      faults.SandboxDenied, // btrfs does not count inodes
		"mkdir 1000000 4096 0 900":    faults.SandboxDiskFull,
		"mkdir 10 4096 500 900":       faults.SandboxDiskFull,
		"mkdir 0 4096 0 0":            faults.SandboxDiskFull,
	} {
		err := answer{word: "failed", args: strings.Fields(said)}.fault("upload")
		if !errors.Is(err, want) || faults.Of(err).Outcome != faults.NotStarted {
			t.Errorf("%s: %v", said, err)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code          int
		before, after string
		oom           bool
	}{
		{killed, "0", "1", true},
		{killed, "7", "9", true},
		{killed, "1", "1", false},
		{killed, "2", "1", false},
		{killed, "", "1", false},
		{killed, "0", "many", false},
		{3, "0", "1", false},
		{0, "0", "1", false},
	} {
		err := outOfMemory("op", sandbox.Exit{Code: test.code}, test.before, test.after)
		if errors.Is(err, faults.SandboxOOM) != test.oom || !test.oom && err != nil {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func answerOf(said string) answer {
	s := &splitter{found: true}
	_, _ = s.Write([]byte(said))
	return s.parse()
}

// Whatever a host says is a fault of it or what was asked for.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("failed write 1 2 3\nbody"))
	f.Add([]byte("ended 0 1 2 3\nbegun\nended: 3 7\n"))
	f.Add([]byte("failed write -1 NaN 1e400"))
	f.Fuzz(func(t *testing.T, said []byte) {
		if len(said) > maxSaid {
			t.Skip()
		}
		a := answerOf(string(said))
		err := a.expect("op", "ok")
		if (err == nil) != (a.word == "ok") {
			t.Errorf("%q: %v", said, err)
		}
		if f := faults.Of(err); err != nil && (!errors.Is(err, faults.Sandbox) || f.Kind == faults.Sandbox || f.Outcome == "" || f.Error() == "") {
			t.Errorf("%q: %v", said, err)
		}
	})
}
