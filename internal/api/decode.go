package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"executor/internal/runs"
)

// maxShown bounds how many problems one answer lists: a body of some megabytes
// can have as many.
const maxShown = 100

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
	details := make([]*huma.ErrorDetail, 0, min(len(e.Problems), maxShown))
	for _, p := range e.Problems[:min(len(e.Problems), maxShown)] {
		location := "body.spec"
		if p.Field != "" {
			location += "." + p.Field
		}
		details = append(details, field(location, p.Message))
	}
	invalid := invalid(details)
	if more := len(e.Problems) - maxShown; more > 0 {
		invalid.Detail += fmt.Sprintf("; %d more problems are not listed", more)
	}
	return invalid
}

func invalid(details []*huma.ErrorDetail) *problem {
	return newProblem(http.StatusUnprocessableEntity, "the request is not valid", details...)
}

// undecodable words an error of the JSON decoder. 400: the body is not JSON;
// 422: it does not fit.
func undecodable(err error) *problem {
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		message := fmt.Sprintf("it is not JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			message = "the field is given twice"
		}
		return newProblem(http.StatusBadRequest, "the body cannot be read", field(location(syntactic.JSONPointer), message))
	}
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return newProblem(http.StatusBadRequest, "the body cannot be read", field("body", "it is not JSON"))
	}
	message := "it does not fit the field"
	if errors.Is(err, json.ErrUnknownName) {
		message = "there is no such field"
	} else if semantic.GoType != nil {
		message = fmt.Sprintf("expected %s, got a JSON %s", wanted(semantic.GoType.String()), semantic.JSONKind)
	}
	return invalid([]*huma.ErrorDetail{field(location(semantic.JSONPointer), message)})
}

func wanted(goType string) string {
	switch goType {
	case "string":
		return "a string"
	case "int":
		return "a whole number"
	case "time.Time":
		return `a time such as "2030-01-02T15:04:05Z"`
	}
	return "an object"
}

// location turns "/spec/steps/0/name" into "body.spec.steps[0].name".
func location(p jsontext.Pointer) string {
	at := strings.Builder{}
	at.WriteString("body")
	for token := range p.Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			at.WriteString("[" + token + "]")
		} else {
			at.WriteString("." + token)
		}
	}
	return at.String()
}
