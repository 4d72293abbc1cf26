package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"executor/internal/api"
	"executor/internal/jobs"
	"executor/internal/runs"
)

const (
	enqueueTries = 60 // one each second
	deedTries    = 8
)

// office is who enqueues, cancels and retries: by SQL, the API of any
// executor, and River UI, which is served here so that it is always there.
type office struct {
	store  *runs.Store
	server *http.Server
	url    string
	stop   context.CancelFunc
	client http.Client

	mu   sync.Mutex
	ids  map[string]uuid.UUID // task → run
	did  map[string][]didDeed
	lost []string // tasks that could not be enqueued
}

// didDeed is a deed and what came of it.
type didDeed struct {
	deed
	at       time.Time
	accepted bool
	answer   string
}

func openOffice(ctx context.Context, db *pgxpool.Pool) (*office, error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	o := &office{store: runs.NewStore(db, "executor", 15*time.Second, zerolog.Nop()), stop: stop,
		client: http.Client{Timeout: 5 * time.Second}, ids: map[string]uuid.UUID{}, did: map[string][]didDeed{}}
	inspector, err := jobs.NewInspector(o.store, zerolog.Nop())
	if err != nil {
		return o, err
	}
	ui, err := api.NewRiverUI(ctx, inspector, zerolog.Nop())
	if err != nil {
		return o, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return o, err
	}
	o.url = "http://" + listener.Addr().String()
	o.server = &http.Server{Handler: api.New(api.Config{Store: o.store, RiverUI: ui, Log: zerolog.Nop()})}
	go func() { _ = o.server.Serve(listener) }()
	return o, nil
}

func (o *office) close() {
	o.stop()
	if o.server != nil {
		o.server.Close()
	}
}

// handle does with a task what is planned.
func (o *office) handle(ctx context.Context, w *world, t *task) {
	if !sleep(ctx, time.Until(w.began.Add(t.at))) {
		return
	}
	id, err := o.enqueue(ctx, w, t)
	o.mu.Lock()
	if err != nil {
		o.lost = append(o.lost, fmt.Sprintf("%s: %v", t.name, err))
	} else {
		o.ids[t.name] = id
	}
	o.mu.Unlock()
	if err != nil {
		return
	}
	enqueued := time.Now()
	for _, d := range t.deeds {
		if !sleep(ctx, time.Until(enqueued.Add(d.after))) {
			return
		}
		o.do(ctx, t, id, d)
	}
}

// enqueue repeats until it is told the run's id; the key makes it one run.
func (o *office) enqueue(ctx context.Context, w *world, t *task) (id uuid.UUID, err error) {
	spec := []byte(t.raw)
	if t.raw == "" {
		if spec, err = json.Marshal(t.spec); err != nil {
			return id, err
		}
	}
	for try := range enqueueTries {
		if try > 0 && !sleep(ctx, time.Second) {
			return id, ctx.Err()
		}
		if t.viaSQL {
			tryCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
			err = o.store.Pool().QueryRow(tryCtx, `SELECT executor.enqueue_run($1, $2)`, string(spec), t.name).Scan(&id)
			cancel()
		} else {
			var made struct{ ID uuid.UUID }
			body, _ := json.Marshal(map[string]any{"spec": json.RawMessage(spec), "idempotency_key": t.name})
			e := w.executors[(len(t.name)+int(t.at/time.Millisecond)+try)%len(w.executors)]
			err = o.post(ctx, "http://"+e.listen+"/v1/runs", body, &made)
			id = made.ID
		}
		if err == nil {
			return id, nil
		}
	}
	return id, err
}

// do carries out a deed, trying again where it got no answer.
func (o *office) do(ctx context.Context, t *task, id uuid.UUID, d deed) {
	did := didDeed{deed: d, at: time.Now()}
	for try := range deedTries {
		if try > 0 && !sleep(ctx, time.Second) {
			break
		}
		err := o.try(ctx, id, d)
		did.accepted = err == nil
		did.answer = fmt.Sprint(err)
		if refused, ok := err.(refusal); err == nil || ok && refused < 500 && refused != http.StatusNotFound {
			break
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.did[t.name] = append(o.did[t.name], did)
}

func (o *office) try(ctx context.Context, id uuid.UUID, d deed) error {
	tryCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch d.via {
	case "sql":
		_, err := o.store.Cancel(tryCtx, o.store.Pool(), id)
		return err
	case "api":
		return o.post(tryCtx, fmt.Sprintf("%s/v1/runs/%s/%s", o.url, id, d.what), nil, nil)
	}
	// The page names the job that it shows, which may be another one by now.
	var job int64
	if err := o.store.Pool().QueryRow(tryCtx, `SELECT job_id FROM executor.runs WHERE id = $1`, id).Scan(&job); err != nil {
		return err
	}
	body, _ := json.Marshal(map[string]any{"ids": []string{strconv.FormatInt(job, 10)}})
	return o.post(tryCtx, o.url+"/riverui/api/jobs/"+d.what, body, nil)
}

// refusal is an HTTP status that is no success.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("status %d", int(r)) }

func (o *office) post(ctx context.Context, url string, body []byte, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := o.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return refusal(response.StatusCode)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(content, answer)
}
