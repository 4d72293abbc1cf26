package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"executor/internal/runs"
)

// problem is an RFC 9457 document, as huma itself writes them.
type problem struct{ huma.ErrorModel }

func newProblem(status int, detail string, fields ...*huma.ErrorDetail) *problem {
	return &problem{huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail, Errors: fields}}
}

// field says what is wrong with one part of a request. The value is not
// repeated: it may be secret.
func field(location, message string) *huma.ErrorDetail {
	return &huma.ErrorDetail{Location: location, Message: message}
}

// fail turns an error of the store into the answer.
func (s *server) fail(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, runs.ErrNotFound):
		return newProblem(http.StatusNotFound, "there is no such run")
	case errors.Is(err, runs.ErrNotRetryable):
		return newProblem(http.StatusConflict, err.Error())
	case ctx.Err() != nil: // nobody reads the answer
		return newProblem(http.StatusServiceUnavailable, "the request was given up")
	}
	return s.unforeseen(err)
}

// unforeseen keeps the error in the log, and gives the caller its id there.
func (s *server) unforeseen(err error) *problem {
	id := uuid.New()
	s.log.Error().Err(err).Stringer("error_id", id).Msg("a request failed")
	p := newProblem(http.StatusInternalServerError, "the request failed; the log has the reason under the error_id of this instance")
	p.Instance = "urn:uuid:" + id.String()
	return p
}

// write sends the problem where huma does not.
func (p *problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone
}

func writeProblem(w http.ResponseWriter, status int, detail string) {
	newProblem(status, detail).write(w)
}

// unrouted words the mux's own refusals, which are plain text.
func unrouted(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &refusal{header: w.Header()} // keeps the Allow of a 405
		mux.ServeHTTP(answer, r)
		if answer.status < http.StatusBadRequest { // to the path's clean form
			w.WriteHeader(answer.status)
			return
		}
		detail := "there is nothing at this path"
		if answer.status == http.StatusMethodNotAllowed {
			detail = "the path takes only " + w.Header().Get("Allow")
		}
		writeProblem(w, answer.status, detail)
	})
}

// refusal takes an answer's status and header, and drops its text.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) WriteHeader(status int)      { r.status = status }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }
