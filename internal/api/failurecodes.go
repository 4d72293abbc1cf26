package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"executor/internal/faults"
)

type failureCode struct {
	Code      string `json:"code"`
	Family    string `json:"family,omitempty" doc:"The code above it: overrides may name it for all below."`
	Policy    string `json:"policy" doc:"Whether and when a run is retried."`
	Inherited bool   `json:"inherited" doc:"The policy is the family's."`
	Meaning   string `json:"meaning"`
}

type failureCodes struct {
	Body struct {
		FailureCodes []failureCode `json:"failure_codes"`
	}
}

func (s *server) addFailureCodes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "list-failure-codes", Method: http.MethodGet, Path: "/v1/failure-codes", Tags: []string{"runs"},
		Summary: "Every reason a run can fail for",
	}, func(context.Context, *struct{}) (*failureCodes, error) {
		out := &failureCodes{}
		for _, kind := range faults.Kinds() {
			code := failureCode{Code: kind.Code(), Policy: kind.Policy().String(), Inherited: kind.Inherits(), Meaning: kind.Doc()}
			if family := kind.Parent(); family != nil {
				code.Family = family.Code()
			}
			out.Body.FailureCodes = append(out.Body.FailureCodes, code)
		}
		return out, nil
	})
}
