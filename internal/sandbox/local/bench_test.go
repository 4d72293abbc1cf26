package local_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"executor/internal/sandbox"
	"executor/internal/sandbox/local"
)

// BenchmarkFollowQuiet measures the CPU that 200 followers of processes that
// print nothing cost, in percent of one core.
func BenchmarkFollowQuiet(b *testing.B) {
	conn := dial(b, open(b, b.TempDir(), local.Plain))
	const followers = 200
	done, stop := make(chan error, followers), errors.New("stop")
	for i := range followers {
		launch := sandbox.Launch{RunID: "run", Step: fmt.Sprint("quiet", i), N: 1}
		if _, err := conn.Start(b.Context(), launch, sandbox.Command{Argv: []string{"sleep", "300"}}); err != nil {
			b.Fatal(err)
		}
		go func() {
			_, err := conn.Follow(b.Context(), launch, sandbox.Offsets{}, func(sandbox.Stream, int64, []byte) error { return stop })
			done <- err
		}()
	}
	time.Sleep(5 * time.Second) // until the machine has come to rest
	before := cpu()
	const span = 5 * time.Second
	time.Sleep(span)
	b.ReportMetric(100*float64(cpu()-before)/float64(span), "%cpu")
}

func cpu() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
