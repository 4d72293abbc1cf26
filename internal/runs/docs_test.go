package runs_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"executor/internal/runs"
)

var update = flag.Bool("update", false, "write the generated docs")

// The tables of the state machine and of reconciliation stand in
// docs/architecture.md as the code has them.
func TestDocsOfArchitecture(t *testing.T) {
	const path = "../../docs/architecture.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := splice(t, splice(t, string(have), "states", stateDiagram()), "reconciliation", reconciliationTable())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(have) != want {
		t.Errorf("%s is not what the code says; run: make docs", path)
	}
}

func splice(t *testing.T, text, name, generated string) string {
	t.Helper()
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("no place for %q in the document", name)
	}
	return head + begin + generated + end + tail
}

func stateDiagram() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> queued: enqueued\n")
	for _, tr := range runs.Transitions {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", tr.From, tr.To, tr.On)
	}
	for _, s := range runs.Statuses {
		if s.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	return b.String() + "```\n"
}

func reconciliationTable() string {
	owners := []struct{ alive, working bool }{{true, true}, {true, false}, {false, false}}
	var b strings.Builder
	b.WriteString("| run | job | the owner … works on it | … lives, but does not | … is dead, or there is none |\n|---|---|---|---|---|\n")
	for _, run := range runs.RunStates {
		for _, job := range runs.JobStates {
			fmt.Fprintf(&b, "| %s | %s |", run, job)
			for _, o := range owners {
				fmt.Fprintf(&b, " %s |", runs.Reconcile(run, job, o.alive, o.working))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
