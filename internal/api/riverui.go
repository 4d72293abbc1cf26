package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/rs/zerolog"
	"riverqueue.com/riverui"
)

const riverUIPrefix = "/riverui"

// riverUIBody is the most that the UI's own API reads: lists of job ids.
const riverUIBody = 1 << 20

// NewRiverUI returns River's pages over the client's schema, for
// Config.RiverUI. What they need in the background runs until ctx ends.
func NewRiverUI(ctx context.Context, client *river.Client[pgx.Tx], log zerolog.Logger) (http.Handler, error) {
	ui, err := riverui.NewHandler(&riverui.HandlerOpts{
		Endpoints: riverui.NewEndpoints(client, nil),
		Logger:    slog.New(zerolog.NewSlogHandler(log.With().Str("component", "riverui").Logger())),
		Prefix:    riverUIPrefix,
	})
	if err != nil {
		return nil, fmt.Errorf("river UI: %w", err)
	}
	if err := ui.Start(ctx); err != nil {
		return nil, fmt.Errorf("river UI: %w", err)
	}
	return http.MaxBytesHandler(ui, riverUIBody), nil
}

// riverUIHeaders lets the UI load its own assets, and nothing from elsewhere.
// Its components write style attributes.
func riverUIHeaders(ui http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy",
			"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		ui.ServeHTTP(w, r)
	})
}
