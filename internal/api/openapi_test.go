package api_test

import (
	"encoding/json"
	"testing"
)

func TestOpenAPI(t *testing.T) {
	f := newFront(t)
	a := f.request("GET", "/openapi.json", "")
	type schema struct {
		Ref        string `json:"$ref"`
		Type       any
		Examples   []any
		Required   []string
		Properties map[string]struct {
			Ref      string `json:"$ref"`
			Type     any
			Examples []any
			Items    struct {
				Ref string `json:"$ref"`
			}
		}
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(a.body, &doc); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("OpenAPI %s", doc.OpenAPI)
	}
	for path, methods := range map[string][]string{
		"/v1/runs": {"get", "post"}, "/v1/runs/{id}": {"get"}, "/v1/runs/{id}/cancel": {"post"}, "/v1/runs/{id}/retry": {"post"},
		"/v1/failure-codes": {"get"}, "/healthz": {"get"}, "/readyz": {"get"},
	} {
		for _, method := range methods {
			if doc.Paths[path][method] == nil {
				t.Errorf("%s %s is missing", method, path)
			}
		}
	}
	var submit struct {
		RequestBody struct {
			Required bool
			Content  map[string]struct{ Schema schema }
		}
	}
	if err := json.Unmarshal(doc.Paths["/v1/runs"]["post"], &submit); err != nil {
		t.Fatal(err)
	}
	if body := submit.RequestBody; !body.Required || body.Content["application/json"].Schema.Ref != "#/components/schemas/Submission" {
		t.Errorf("the body of a submission: %+v", body)
	}
	schemas := doc.Components.Schemas
	for _, name := range []string{"spec", "idempotency_key", "queue", "priority", "scheduled_at"} {
		if _, ok := schemas["Submission"].Properties[name]; !ok {
			t.Errorf("a submission has no %s", name)
		}
	}
	if required := schemas["Submission"].Required; len(required) != 1 || required[0] != "spec" {
		t.Errorf("a submission requires %v", required)
	}
	if got := schemas["Spec"].Properties["steps"].Items.Ref; got != "#/components/schemas/Step" {
		t.Errorf("steps: %q", got)
	}
	if got := schemas["Spec"].Properties["timeout"]; got.Type != "string" || len(got.Examples) == 0 {
		t.Errorf("a duration: %+v", got)
	}
	for name := range schemas["Detail"].Properties {
		if name == "$schema" {
			t.Error("answers carry $schema")
		}
	}
	if schemas["Detail"].Properties["status"].Type == nil || schemas["Summary"].Properties["failure_code"].Type == nil {
		t.Error("the schema of a run lacks its fields")
	}
}
