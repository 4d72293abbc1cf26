package api

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// logged writes one line for each request: no bodies, no query, no headers,
// for they may be secret. Health checks and the UI's polling are for debugging.
func (s *server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started, rec := time.Now(), &recorder{ResponseWriter: w}
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				problem := s.unforeseen(fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
				if rec.status == 0 {
					problem.write(rec)
				}
			}
			s.log.WithLevel(levelOf(r)).Str("method", r.Method).Str("path", r.URL.Path).
				Int("status", rec.status).Dur("duration", time.Since(started)).Msg("request")
		}()
		next.ServeHTTP(rec, r)
	})
}

func levelOf(r *http.Request) zerolog.Level {
	polled := strings.HasPrefix(r.URL.Path, riverUIPrefix+"/") || r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
	if polled && r.Method == http.MethodGet {
		return zerolog.DebugLevel
	}
	return zerolog.InfoLevel
}

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find what the connection can do.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
