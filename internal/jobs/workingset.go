package jobs

import (
	"context"
	"sync"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"executor/internal/runs"
)

// workingSet is what an executor works on now.
type workingSet struct {
	size     prometheus.Gauge
	mu       sync.Mutex
	works    map[uuid.UUID]work
	draining bool
}

type work struct {
	epoch int64
	end   context.CancelCauseFunc
}

func newWorkingSet(size prometheus.Gauge) *workingSet {
	return &workingSet{size: size, works: map[uuid.UUID]work{}}
}

// add puts a claimed run into the set. The context it returns ends with one of
// the causes of runs; done takes the run out again.
func (s *workingSet) add(ctx context.Context, c *runs.Claim) (runCtx context.Context, done func()) {
	runCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { end(causeOf(ctx)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.works[c.RunID] = work{c.Epoch, end}
	s.size.Set(float64(len(s.works)))
	if s.draining {
		end(runs.ErrDraining)
	}
	return runCtx, func() {
		stop()
		end(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.works[c.RunID].epoch == c.Epoch {
			delete(s.works, c.RunID)
			s.size.Set(float64(len(s.works)))
		}
	}
}

// list is what Watch asks about.
func (s *workingSet) list() []runs.Work {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]runs.Work, 0, len(s.works))
	for id, w := range s.works {
		all = append(all, runs.Work{RunID: id, Epoch: w.epoch})
	}
	return all
}

func (s *workingSet) has(run uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.works[run]
	return ok
}

// end ends the context of one run with the cause.
func (s *workingSet) end(run uuid.UUID, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := s.works[run]; ok {
		w.end(cause)
	}
}

// endAll ends every run's context with the cause, and those that come.
func (s *workingSet) endAll(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for _, w := range s.works {
		w.end(cause)
	}
}

func (s *workingSet) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}
