package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Check is one thing that must be so before this process can take runs.
type Check struct {
	Name string
	// Run returns nil, or what is wrong; the text is shown to whoever asks.
	Run func(ctx context.Context) error
}

// checkTimeout is for all checks together, which run at the same time.
const checkTimeout = 3 * time.Second

type health struct {
	Body struct {
		Status  string `json:"status" enum:"ok"`
		Version string `json:"version"`
	}
}

type readiness struct {
	Status int
	Body   struct {
		Ready  bool              `json:"ready"`
		Checks map[string]string `json:"checks" doc:"By name: ok, or what is wrong."`
	}
}

func (s *server) addHealth(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "healthz", Method: http.MethodGet, Path: "/healthz", Tags: []string{"health"},
		Summary: "Does the process live?", Description: "Asks nothing else, so that a database that is away does not get the process restarted.",
	}, func(context.Context, *struct{}) (*health, error) {
		out := &health{}
		out.Body.Status, out.Body.Version = "ok", s.version
		return out, nil
	})
	huma.Register(api, huma.Operation{
		OperationID: "readyz", Method: http.MethodGet, Path: "/readyz", Tags: []string{"health"},
		Summary:   "Can it take runs?",
		Responses: map[string]*huma.Response{"503": {Description: "It cannot; the same body gives the reasons"}},
	}, s.ready)
}

func (s *server) ready(ctx context.Context, _ *struct{}) (*readiness, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	results := make([]error, len(s.checks))
	var wait sync.WaitGroup
	for i, check := range s.checks {
		wait.Go(func() { results[i] = check.Run(ctx) })
	}
	wait.Wait()

	out := &readiness{Status: http.StatusOK}
	out.Body.Ready, out.Body.Checks = true, map[string]string{}
	for i, check := range s.checks {
		out.Body.Checks[check.Name] = "ok"
		if err := results[i]; err != nil {
			out.Status, out.Body.Ready, out.Body.Checks[check.Name] = http.StatusServiceUnavailable, false, err.Error()
		}
	}
	return out, nil
}
