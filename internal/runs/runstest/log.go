package runstest

import (
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// Log writes to the test's log until the test ends: what is left running then
// is not its concern.
func Log(t testing.TB) zerolog.Logger {
	w := &lines{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return zerolog.New(w)
}

type lines struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *lines) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", p)
	}
	return len(p), nil
}
