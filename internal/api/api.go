// Package api is the HTTP front over runs: the API with its OpenAPI document,
// health checks, and River UI. It decides nothing about runs; it reads a
// request, asks runs, and words the answer.
//
// A request passes, in order:
//
//	log      one line for each request; a panic becomes a 500
//	guard    refuses what does not come from this machine's own pages and programs
//	routes   /v1/… and /openapi.json through huma; /healthz, /readyz, /metrics; /riverui/
//	problem  every refusal is RFC 9457 problem+json; an error that nobody
//	         foresaw is a 500 whose id is in the log, and says no more
//
// There is no authentication yet. So the server listens on loopback only (see
// Listen), and the guard keeps other sites' pages in the user's browser out.
//
// The package may import runs and faults, and River for its UI. It must not
// know jobs, sandboxes or the environment.
package api

import (
	"cmp"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/rs/zerolog"

	"executor/internal/runs"
)

// Config of the HTTP front.
type Config struct {
	Store   *runs.Store
	Checks  []Check      // what /readyz asks, all of them at once
	RiverUI http.Handler // from NewRiverUI; nil: no UI
	Metrics http.Handler // what /metrics serves; nil: none
	Log     zerolog.Logger
	Version string
}

// New returns the handler of everything that is served.
func New(c Config) http.Handler {
	s := &server{store: c.Store, checks: c.Checks, version: cmp.Or(c.Version, "dev"), log: c.Log.With().Str("component", "api").Logger()}
	mux := http.NewServeMux()
	api := humago.New(mux, s.document())
	s.addRuns(api)
	s.addSubmit(api)
	s.addFailureCodes(api)
	s.addHealth(api)
	if c.Metrics != nil {
		mux.Handle("GET /metrics", c.Metrics)
	}
	if c.RiverUI != nil {
		mux.Handle(riverUIPrefix+"/", riverUIHeaders(c.RiverUI))
		mux.Handle("GET /{$}", http.RedirectHandler(riverUIPrefix+"/", http.StatusFound))
	}
	return s.logged(guard(unrouted(mux)))
}

type server struct {
	store   *runs.Store
	checks  []Check
	version string
	log     zerolog.Logger
}

// document describes the API. huma's page over it is off: it loads its script
// from another site.
func (s *server) document() huma.Config {
	doc := huma.DefaultConfig("executor", s.version)
	doc.Info.Description = "Runs of commands and coding agents in sandboxes, from a queue. Errors are RFC 9457 problem documents that name each field."
	doc.DocsPath = ""
	doc.SchemasPath = ""
	doc.CreateHooks = nil // would put $schema into every answer
	doc.RejectUnknownQueryParameters = true
	describeTypes(doc.Components.Schemas)
	return doc
}
