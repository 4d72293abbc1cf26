package api

import (
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"executor/internal/runs"
)

// decodeSubmission reads the body of POST /v1/runs. The error names each
// field, below "body".
func decodeSubmission(data []byte) (runs.Spec, SubmissionOptions, error) {
	var body struct {
		Spec jsontext.Value `json:"spec"`
		SubmissionOptions
	}
	if err := json.Unmarshal(data, &body, json.RejectUnknownMembers(true)); err != nil {
		return runs.Spec{}, body.SubmissionOptions, undecodable(err)
	}
	if body.Spec == nil {
		return runs.Spec{}, body.SubmissionOptions, invalid([]*huma.ErrorDetail{field("body.spec", "expected a spec")})
	}
	spec, err := runs.ParseSpec(body.Spec)
	var problems *runs.SpecError
	if errors.As(err, &problems) {
		return spec, body.SubmissionOptions, invalidSpec(problems)
	}
	return spec, body.SubmissionOptions, err
}

func invalidSpec(e *runs.SpecError) *problem {
	details := make([]*huma.ErrorDetail, len(e.Problems))
	for i, p := range e.Problems {
		details[i] = field(strings.TrimSuffix("body.spec."+p.Field, "."), p.Message)
	}
	return invalid(details)
}

func invalid(details []*huma.ErrorDetail) *problem {
	return newProblem(http.StatusUnprocessableEntity, "the request is not valid", details...)
}

// undecodable words an error of the JSON decoder. 400: the body is not JSON;
// 422: it does not fit.
func undecodable(err error) *problem {
	p := runs.DecodeProblem(err)
	detail := field(strings.TrimSuffix("body."+p.Field, "."), p.Message)
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		return invalid([]*huma.ErrorDetail{detail})
	}
	return newProblem(http.StatusBadRequest, "the body cannot be read", detail)
}
