package sandboxtest

import (
	"bytes"
	"testing"

	"executor/internal/faults"
	"executor/internal/sandbox"
)

// diskTests are of hosts with a small disk.
var diskTests = map[string]func(*testing.T, Subject){
	"too small for an upload": func(t *testing.T, s Subject) {
		b := smallDisk(t, s)
		b.sh("echo old >file")
		for _, name := range []string{"file", "new"} {
			is(t, b.conn.Upload(b.soon(), name, 0o600, bytes.NewReader(make([]byte, bulk))), faults.SandboxDiskFull)
		}
		if out := b.sh("cat file; ls -A"); out != "old\nfile\n" {
			t.Errorf("left %.100q", out)
		}
		if err := b.conn.Upload(b.soon(), "new", 0o600, bytes.NewReader([]byte("x"))); err != nil {
			t.Error("and a small one:", err)
		}
		b.asBefore()
	},
	"too small for an input": func(t *testing.T, s Subject) {
		b := smallDisk(t, s)
		cmd := shell("echo x >>count; cat")
		cmd.Stdin = make([]byte, bulk)
		_, err := b.conn.Start(b.soon(), b.launch(1), cmd)
		is(t, err, faults.SandboxDiskFull)
		if f := faults.Of(err); err != nil && f.Outcome != faults.NotStarted {
			t.Errorf("outcome %q", f.Outcome)
		}
		cmd.Stdin = nil
		if p := b.start(1, cmd); p.Adopted {
			t.Error("the start that was refused left a launch")
		}
		b.follow(1, sandbox.Offsets{}).end()
		if out := b.sh("cat count"); out != "x\n" {
			t.Errorf("it ran %q", out)
		}
		b.asBefore()
	},
	// What it printed until then is handed over all the same.
	"too small for an output": func(t *testing.T, s Subject) {
		b := smallDisk(t, s)
		b.start(1, shell("echo begun; cat /dev/zero"))
		f := b.follow(1, sandbox.Offsets{})
		<-f.done
		is(t, f.err, faults.SandboxDiskFull)
		if f.err != nil && faults.Of(f.err).Outcome != faults.Done {
			t.Errorf("outcome %q", faults.Of(f.err).Outcome)
		}
		f.until("begun\n")
		if n := len(f.stream(sandbox.Stdout)); n < 1<<20 {
			t.Errorf("%d bytes of its output came", n)
		}
		is(t, b.conn.Upload(b.soon(), "more", 0o600, bytes.NewReader(make([]byte, 1<<20))), faults.SandboxDiskFull)
		_, err := b.conn.Start(b.soon(), b.launch(2), sandbox.Command{Argv: []string{"true"}, Stdin: make([]byte, 1<<20)})
		is(t, err, faults.SandboxDiskFull)
		b.asBefore()
	},
	// How a process ends is known on a disk that it has filled, and what it makes
	// of that is its own affair.
	"an end on a full one": func(t *testing.T, s Subject) {
		b := smallDisk(t, s)
		for script, want := range map[string]sandbox.Exit{
			"cat /dev/zero >fill; kill -KILL $$":   {Code: 137, Signal: "SIGKILL"},
			"cat /dev/zero >fill; exit 0":          {},
			"cat /dev/zero >fill; rm fill; exit 7": {Code: 7},
		} {
			b.start(1, shell(script))
			f := b.follow(1, sandbox.Offsets{})
			if got := f.end(); got != want {
				t.Errorf("%s: %+v, want %+v", script, got, want)
			}
			b = smallDisk(t, s)
		}
	},
}

var memoryTests = map[string]func(*testing.T, Subject){
	// What the kernel killed for memory, what somebody else killed, and what only
	// says so, are different things.
	"proved": func(t *testing.T, s Subject) {
		b := newBoxOf(t, s, s.SmallMemory(t)).settled()
		for i, test := range []struct {
			script string
			oom    bool
			exit   sandbox.Exit
		}{
			{script: "echo x; exec tail /dev/zero", oom: true},
			{script: "echo x; tail /dev/zero; exit $?", oom: true},
			{script: "echo x; kill -KILL $$", exit: sandbox.Exit{Code: 137, Signal: "SIGKILL"}},
			{script: "echo x; exit 137", exit: sandbox.Exit{Code: 137}},
			{script: "echo x; tail /dev/zero; exit 3", exit: sandbox.Exit{Code: 3}},
		} {
			check := func(how string, exit sandbox.Exit, err error, out string) {
				t.Helper()
				switch {
				case out != "x\n":
					t.Errorf("%s, %s: it printed %q", test.script, how, out)
				case test.oom:
					is(t, err, faults.SandboxOOM)
					if err != nil && faults.Of(err).Outcome != faults.Done {
						t.Errorf("%s, %s: outcome %q", test.script, how, faults.Of(err).Outcome)
					}
				case err != nil || exit != test.exit:
					t.Errorf("%s, %s: %+v, %v, want %+v", test.script, how, exit, err, test.exit)
				}
			}
			b.start(i+1, shell(test.script))
			for range 2 { // by a later executor as well
				f := b.follow(i+1, sandbox.Offsets{})
				<-f.done
				check("detached", f.exit, f.err, f.stream(sandbox.Stdout))
			}
			var out bytes.Buffer
			exit, err := b.conn.Exec(b.soon(), shell(test.script), sandbox.Stdio{Out: &out})
			check("attached", exit, err, out.String())
		}
		b.asBefore()
	},
}

func smallDisk(t *testing.T, s Subject) *box {
	t.Helper()
	return newBoxOf(t, s, s.SmallDisk(t)).settled()
}
