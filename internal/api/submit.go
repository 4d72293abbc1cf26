package api

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"executor/internal/runs"
)

// submission is the body of POST /v1/runs. Its spec is read by runs.ParseSpec;
// the type is here for the OpenAPI document.
type submission struct {
	Spec runs.Spec `json:"spec"`
	SubmissionOptions
}

// SubmissionOptions is what stands beside the spec; exported, or the document
// would lack it.
type SubmissionOptions struct {
	IdempotencyKey *string    `json:"idempotency_key,omitempty" minLength:"1" maxLength:"255" doc:"A repeated key returns the run that it named first, whatever became of it. The Idempotency-Key header is the same."`
	Queue          *string    `json:"queue,omitempty" pattern:"^[a-z0-9]+([_-][a-z0-9]+)*$" maxLength:"64" doc:"Which executors take it. Default: default."`
	Priority       *int       `json:"priority,omitempty" minimum:"1" maximum:"4" doc:"1, the default, is first."`
	ScheduledAt    *time.Time `json:"scheduled_at,omitempty" doc:"Not before. Default: now."`
}

// maxSubmission leaves the spec its own limit.
const maxSubmission = runs.MaxSpecBytes + 64<<10

const bodyReadTimeout = time.Minute

type submitRequest struct {
	headerKey []string
	Key       string `header:"Idempotency-Key" doc:"As idempotency_key of the body."`
	RawBody   []byte `contentType:"application/json"`
}

// Resolve keeps the header as it was sent: huma's own reading of it, Key, does
// not tell an empty one from none.
func (in *submitRequest) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	in.headerKey = r.Header.Values("Idempotency-Key")
	return nil
}

type submitResponse struct {
	Status   int
	Location string `header:"Location"`
	Body     runs.Summary
}

func (s *server) addSubmit(api huma.API) {
	body := &huma.RequestBody{}
	huma.Register(api, huma.Operation{
		OperationID: "submit-run", Method: http.MethodPost, Path: "/v1/runs", Tags: []string{"runs"},
		Summary:       "Enqueue a run",
		Description:   "A repeated idempotency key enqueues nothing and answers 200 with the run; 409 where its spec is another one.",
		DefaultStatus: http.StatusCreated,
		Errors:        []int{http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
		Responses:     map[string]*huma.Response{"200": {Description: "The idempotency key had named this run before"}},
		RequestBody:   body, SkipValidateBody: true, MaxBodyBytes: maxSubmission, BodyReadTimeout: bodyReadTimeout,
		Middlewares: huma.Middlewares{onlyJSON(api)},
	}, s.submit)
	// huma's own validation would repeat values, and knows less than ParseSpec:
	// the schema only documents.
	body.Content["application/json"].Schema = api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[submission](), true, "")
}

func onlyJSON(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if kind, _, err := mime.ParseMediaType(ctx.Header("Content-Type")); err != nil || kind != "application/json" {
			_ = huma.WriteErr(api, ctx, http.StatusUnsupportedMediaType, "expected Content-Type: application/json")
			return
		}
		next(ctx)
	}
}

func (s *server) submit(ctx context.Context, in *submitRequest) (*submitResponse, error) {
	spec, given, err := decodeSubmission(in.RawBody)
	if err != nil {
		return nil, err
	}
	options, err := given.options(in.headerKey)
	if err != nil {
		return nil, err
	}
	run, fresh, err := s.store.Submit(ctx, spec, options)
	if err != nil {
		return nil, s.refused(ctx, err)
	}
	out := &submitResponse{Status: http.StatusOK, Location: "/v1/runs/" + run.ID.String(), Body: run}
	if fresh {
		out.Status = http.StatusCreated
	}
	return out, nil
}

var queueRE = regexp.MustCompile(`^[a-z0-9]+([_-][a-z0-9]+)*$`)

// options checks what stands beside the spec, and the key of the header.
func (o *SubmissionOptions) options(headerKey []string) (runs.Options, error) {
	var options runs.Options
	var wrong []*huma.ErrorDetail
	if o.IdempotencyKey != nil {
		options.IdempotencyKey = *o.IdempotencyKey
		if message := keyProblem(*o.IdempotencyKey); message != "" {
			wrong = append(wrong, field("body.idempotency_key", message))
		}
	}
	if len(headerKey) > 0 {
		options.IdempotencyKey = headerKey[0]
		switch message := keyProblem(headerKey[0]); {
		case message != "":
			wrong = append(wrong, field("header.Idempotency-Key", message))
		case len(headerKey) > 1, o.IdempotencyKey != nil && *o.IdempotencyKey != headerKey[0]:
			wrong = append(wrong, field("header.Idempotency-Key", "two different keys are given"))
		}
	}
	if o.Queue != nil {
		options.Queue = *o.Queue
		if !queueRE.MatchString(*o.Queue) {
			wrong = append(wrong, field("body.queue", `expected 1 to 64 lower-case letters and digits, parted by single "_" or "-"`))
		}
	}
	if o.Priority != nil {
		options.Priority = *o.Priority
		if *o.Priority < 1 || *o.Priority > 4 {
			wrong = append(wrong, field("body.priority", "expected 1 (first) to 4"))
		}
	}
	if o.ScheduledAt != nil {
		options.ScheduledAt = *o.ScheduledAt
	}
	if wrong != nil {
		return options, invalid(wrong)
	}
	return options, nil
}

func keyProblem(key string) string {
	switch {
	case strings.TrimSpace(key) == "":
		return "it is blank"
	case !utf8.ValidString(key):
		return "expected UTF-8"
	case strings.IndexByte(key, 0) >= 0:
		return "it holds a NUL byte"
	case utf8.RuneCountInString(key) > 255:
		return "expected at most 255 characters"
	}
	return ""
}

// refused words what Postgres refuses. Everything is checked before; this is
// for what it alone knows, which is the key, and for where its rules are
// stricter than ours.
func (s *server) refused(ctx context.Context, err error) error {
	var spec *runs.SpecError
	if errors.As(err, &spec) {
		return invalidSpec(spec)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case pgerrcode.UniqueViolation:
			return newProblem(http.StatusConflict, "the idempotency key names a run already, which has another spec")
		case pgerrcode.InvalidParameterValue: // worded by enqueue_run, for callers
			return newProblem(http.StatusUnprocessableEntity, pg.Message)
		case pgerrcode.UntranslatableCharacter, pgerrcode.CharacterNotInRepertoire:
			return newProblem(http.StatusUnprocessableEntity, "a text in it holds a NUL byte, which Postgres cannot store")
		}
	}
	return s.fail(ctx, err)
}
