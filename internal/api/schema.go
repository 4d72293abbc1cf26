package api

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"executor/internal/runs"
)

// describeTypes gives types that know nothing of OpenAPI their schema.
func describeTypes(schemas huma.Registry) {
	schemas.RegisterTypeAlias(reflect.TypeFor[runs.Duration](), reflect.TypeFor[durationSchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[uuid.UUID](), reflect.TypeFor[uuidSchema]())
}

type durationSchema string

func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Examples: []any{"90s", "1h30m"},
		Description: `A decimal number with a unit, or several of them: "90s", "1h30m". Units are h, m, s, ms, us and ns.`,
	}
}

type uuidSchema string

func (uuidSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid"}
}
