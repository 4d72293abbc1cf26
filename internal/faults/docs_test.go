package faults_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"executor/internal/faults"
)

var update = flag.Bool("update", false, "write the generated docs")

// docs/failure-codes.md is the table in words.
func TestDocsOfFailureCodes(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Failure codes

<!-- Generated from internal/faults by "make docs". -->

A failed run says why in ` + "`runs.failure_code`" + `; each of its attempts in ` + "`run_attempts.failure_code`" + `. The codes are also in
the table ` + "`failure_codes`" + `, in ` + "`executor codes`" + ` and at ` + "`GET /v1/failure-codes`" + `.

A **transient** fault is retried once for each delay, within ±10 %; codes with the same policy in one family share their
retries. A **quota** is waited for once, until the provider's window turns: as its answer says, else 30 minutes, and a
minute or two more; a window that turns in more than 6 hours ends the run. **Never** ends the run at once. A run may change
this for itself, by code or family:

` + "```json\n" + `{"retry": {"include": ["command_failed"], "exclude": ["sandbox_lost"], "delays": ["10s", "1m"]}}
` + "```" + `

| code | family | policy | meaning |
|---|---|---|---|
`)
	for _, k := range faults.Kinds() {
		family := "–"
		if k.Parent() != nil {
			family = k.Parent().Code()
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Code(), family, k.Policy(), k.Doc())
	}
	const path = "../../docs/failure-codes.md"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != b.String() {
		t.Errorf("%s is not what the table says (%v); run: make docs", path, err)
	}
}
