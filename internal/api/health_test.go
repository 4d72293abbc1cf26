package api_test

import (
	"context"
	"errors"
	"testing"

	"executor/internal/api"
)

func TestHealth(t *testing.T) {
	f := newFront(t)
	f.store.Pool().Close() // the process lives all the same
	got := decode[map[string]string](t, f.request("GET", "/healthz", ""), 200)
	if got["status"] != "ok" || got["version"] != "v1.2.3" {
		t.Errorf("got %v", got)
	}
}

func TestReady(t *testing.T) {
	var wrong error
	f := newFront(t,
		api.Check{Name: "database", Run: func(ctx context.Context) error { return nil }},
		api.Check{Name: "executor", Run: func(ctx context.Context) error { return wrong }})
	type ready struct {
		Ready  bool
		Checks map[string]string
	}
	if got := decode[ready](t, f.request("GET", "/readyz", ""), 200); !got.Ready || got.Checks["database"] != "ok" || got.Checks["executor"] != "ok" {
		t.Errorf("got %+v", got)
	}
	wrong = errors.New("not claiming")
	if got := decode[ready](t, f.request("GET", "/readyz", ""), 503); got.Ready || got.Checks["database"] != "ok" || got.Checks["executor"] != "not claiming" {
		t.Errorf("got %+v", got)
	}
}
