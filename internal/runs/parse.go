package runs

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Problem is one thing that is wrong with a spec.
type Problem struct {
	Field   string `json:"field"` // such as "steps[0].timeout"; empty: the spec as a whole
	Message string `json:"message"`
}

// SpecError says everything that is wrong with a spec.
type SpecError struct{ Problems []Problem }

func (e *SpecError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Message
		if p.Field != "" {
			lines[i] = p.Field + ": " + p.Message
		}
	}
	return "invalid spec: " + strings.Join(lines, "; ")
}

// ParseSpec reads and validates the JSON form of a spec. The error is a
// *SpecError that names each field.
func ParseSpec(data []byte) (Spec, error) {
	var spec Spec
	if len(data) > MaxSpecBytes {
		return spec, &SpecError{[]Problem{{"", fmt.Sprintf("expected at most %d MiB, got %d bytes", MaxSpecBytes>>20, len(data))}}}
	}
	if err := json.Unmarshal(data, &spec, json.RejectUnknownMembers(true)); err != nil {
		return spec, &SpecError{[]Problem{DecodeProblem(err)}}
	}
	return spec, spec.Validate()
}

// DecodeProblem words an error of the JSON decoder (go-json-experiment's) for
// the person who wrote the JSON.
func DecodeProblem(err error) Problem {
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		p := Problem{Field: fieldPath(semantic.JSONPointer)}
		switch {
		case errors.Is(err, json.ErrUnknownName):
			p.Message = "there is no such field"
		case semantic.GoType == reflect.TypeFor[Duration]() && semantic.JSONKind != '"':
			p.Message = "expected " + durationForm
		case semantic.GoType == reflect.TypeFor[time.Time]():
			p.Message = `expected a time such as "2030-01-02T15:04:05Z"`
		case semantic.Err != nil:
			p.Message = semantic.Err.Error()
		case semantic.GoType != nil:
			p.Message = fmt.Sprintf("expected %s, got a JSON %s", jsonTypeOf(semantic.GoType.Kind().String()), semantic.JSONKind)
		default:
			p.Message = "it does not fit the field"
		}
		return p
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		p := Problem{Field: fieldPath(syntactic.JSONPointer), Message: fmt.Sprintf("it is not JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err)}
		if errors.Is(err, jsontext.ErrDuplicateName) {
			p.Message = "the field is given twice"
		}
		return p
	}
	return Problem{Message: "it is not JSON: " + err.Error()}
}

func jsonTypeOf(kind string) string {
	switch kind {
	case "slice", "array":
		return "an array"
	case "map", "struct":
		return "an object"
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	}
	return "a " + kind
}

// fieldPath turns "/steps/0/name" into "steps[0].name".
func fieldPath(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.Atoi(token); err == nil && b.Len() > 0 {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return b.String()
}
