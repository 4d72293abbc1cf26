package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"executor/internal/runs"
)

type runID struct {
	ID uuid.UUID `path:"id" doc:"The run's id."`
}

type runSummary struct {
	Status int
	Body   runs.Summary
}

type runDetail struct{ Body runs.Detail }

type listQuery struct {
	Status      string    `query:"status" enum:"queued,running,backing_off,succeeded,failed,cancelled"`
	FailureCode string    `query:"failure_code" pattern:"^[a-z][a-z0-9_]*$" maxLength:"64"`
	Limit       int       `query:"limit" minimum:"1" maximum:"500" default:"50"`
	Before      time.Time `query:"before" doc:"Runs created before this time."`
	BeforeID    uuid.UUID `query:"before_id" doc:"Of runs created at the very time of before, those that stand after this one. For the next page."`
}

type runList struct {
	Body struct {
		Runs []runs.Summary `json:"runs" doc:"Newest first."`
		Next string         `json:"next,omitempty" doc:"Where the next page is, if there may be one."`
	}
}

func (s *server) addRuns(api huma.API) {
	tags := []string{"runs"}
	huma.Register(api, huma.Operation{
		OperationID: "list-runs", Method: http.MethodGet, Path: "/v1/runs", Tags: tags,
		Summary: "List runs",
	}, s.listRuns)
	huma.Register(api, huma.Operation{
		OperationID: "get-run", Method: http.MethodGet, Path: "/v1/runs/{id}", Tags: tags, Errors: []int{http.StatusNotFound},
		Summary: "Everything about a run but its output",
	}, func(ctx context.Context, in *runID) (*runDetail, error) {
		detail, err := s.store.Get(ctx, in.ID)
		if err != nil {
			return nil, s.fail(ctx, err)
		}
		return &runDetail{detail}, nil
	})
	huma.Register(api, huma.Operation{
		OperationID: "cancel-run", Method: http.MethodPost, Path: "/v1/runs/{id}/cancel", Tags: tags, Errors: []int{http.StatusNotFound},
		Summary:     "Ask for the end of a run",
		Description: "A run that has ended stays as it is.",
		Responses:   map[string]*huma.Response{"202": {Description: "Its process is being stopped"}},
	}, s.cancelRun)
	huma.Register(api, huma.Operation{
		OperationID: "retry-run", Method: http.MethodPost, Path: "/v1/runs/{id}/retry", Tags: tags, Errors: []int{http.StatusNotFound, http.StatusConflict},
		Summary:     "Reopen a failed or cancelled run",
		Description: "It goes on at its first unfinished step, with a fresh retry budget.",
	}, func(ctx context.Context, in *runID) (*runSummary, error) {
		if err := s.store.Retry(ctx, in.ID); err != nil {
			return nil, s.fail(ctx, err)
		}
		return s.summary(ctx, in.ID, http.StatusOK)
	})
}

func (s *server) listRuns(ctx context.Context, in *listQuery) (*runList, error) {
	list, err := s.store.List(ctx, runs.Filter{
		Status: runs.Status(in.Status), FailureCode: in.FailureCode, Before: in.Before, BeforeID: in.BeforeID, Limit: in.Limit,
	})
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	out := &runList{}
	out.Body.Runs = append([]runs.Summary{}, list...)
	if len(list) == in.Limit {
		out.Body.Next = in.after(list[len(list)-1])
	}
	return out, nil
}

// after is where the page behind the run is.
func (in *listQuery) after(last runs.Summary) string {
	next := url.Values{
		"limit":     {strconv.Itoa(in.Limit)},
		"before":    {last.CreatedAt.Format(time.RFC3339Nano)},
		"before_id": {last.ID.String()},
	}
	if in.Status != "" {
		next.Set("status", in.Status)
	}
	if in.FailureCode != "" {
		next.Set("failure_code", in.FailureCode)
	}
	return "/v1/runs?" + next.Encode()
}

func (s *server) cancelRun(ctx context.Context, in *runID) (*runSummary, error) {
	status, err := s.store.Cancel(ctx, s.store.Pool(), in.ID)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	if status.Terminal() {
		return s.summary(ctx, in.ID, http.StatusOK)
	}
	return s.summary(ctx, in.ID, http.StatusAccepted)
}

func (s *server) summary(ctx context.Context, id uuid.UUID, status int) (*runSummary, error) {
	run, err := s.store.Summary(ctx, id)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return &runSummary{status, run}, nil
}
