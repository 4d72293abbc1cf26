package main

import (
	"context"
	"sync"
	"syscall"
	"time"
)

// doneFault is a fault as it really was.
type doneFault struct {
	fault
	began, over time.Time
	pid         int // of the victim
	skipped     string
}

// carryOut waits for the fault's time, breaks things, and puts them right.
func (w *world) carryOut(ctx context.Context, f fault) {
	if !sleep(ctx, time.Until(w.began.Add(f.at))) {
		return
	}
	d := doneFault{fault: f, began: time.Now()}
	if f.victim < 0 {
		w.say("everybody: %s, %s", f.kind, f.lasts.Round(100*time.Millisecond))
		w.breakAll(ctx, f)
	} else {
		e := w.executors[f.victim]
		if !e.busy.TryLock() {
			d.skipped = "the one before it is not over"
		} else {
			w.breakExecutor(ctx, e, &d)
			e.busy.Unlock()
		}
	}
	d.over = time.Now()
	if d.skipped != "" {
		w.say("executor %d: no %s: %s", f.victim, f.kind, d.skipped)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, d)
}

// breakAll breaks what all executors depend on, or all of them.
func (w *world) breakAll(ctx context.Context, f fault) {
	var err error
	switch f.kind {
	case faultRestart:
		err = w.pg.restart(ctx)
	case faultOutage:
		if err = w.pg.stop(ctx, "immediate"); err == nil {
			sleep(ctx, f.lasts)
			err = w.pg.start(context.WithoutCancel(ctx))
		}
	case faultBackend: // where Postgres is away, it has done so itself
		_, _ = w.db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'executor'`)
	case faultAll:
		var all sync.WaitGroup
		for _, e := range w.executors {
			all.Go(func() {
				if e.busy.TryLock() { // what is being broken is put right by who breaks it
					defer e.busy.Unlock()
					w.breakExecutor(ctx, e, &doneFault{fault: fault{kind: faultKill, lasts: time.Duration(e.index) * time.Second}})
				}
			})
		}
		all.Wait()
	}
	if err != nil {
		w.fail("%s: %v", f.kind, err)
	}
}

func (w *world) breakExecutor(ctx context.Context, e *executor, d *doneFault) {
	p := e.up()
	if p == nil {
		if err := e.ensure(); err != nil {
			w.fail("executor %d: %v", e.index, err)
		}
		d.skipped = "it was down by itself, and is started"
		return
	}
	d.pid = p.pid
	w.say("executor %d: %s, %s", e.index, d.kind, d.lasts.Round(100*time.Millisecond))
	var err error
	switch d.kind {
	case faultKill:
		e.signal(syscall.SIGKILL, true)
		<-p.gone
		sleep(ctx, d.lasts)
		err = e.start()
	case faultTerm:
		w.term(e)
		err = e.start()
	case faultStop:
		e.signal(syscall.SIGSTOP, false)
		sleep(ctx, d.lasts)
		e.signal(syscall.SIGCONT, false)
	case faultCut:
		e.proxy.cut()
		sleep(ctx, d.lasts)
		err = e.proxy.heal()
	case faultDelay:
		err = e.proxy.delay(time.Duration(200+100*(d.at.Milliseconds()%10)) * time.Millisecond)
		sleep(ctx, d.lasts)
		if err == nil {
			err = e.proxy.heal()
		}
	case faultSwallow:
		err = e.proxy.swallow()
		sleep(ctx, d.lasts)
		if err == nil {
			err = e.proxy.heal()
		}
	}
	if err != nil {
		w.fail("executor %d: %s: %v", e.index, d.kind, err)
	}
}

// term asks the executor to leave and sees that it does in time.
func (w *world) term(e *executor) {
	p := e.signal(syscall.SIGTERM, true)
	if p == nil {
		return
	}
	asked := time.Now()
	select {
	case <-p.gone:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			w.say("executor %d: its exit status after SIGTERM is %d, %s", e.index, code, p.cmd.ProcessState)
		}
		w.mu.Lock()
		w.drains = append(w.drains, time.Since(asked))
		w.mu.Unlock()
	case <-time.After(termLimit):
		w.fail("executor %d (pid %d) lives %s after SIGTERM", e.index, p.pid, termLimit)
		e.signal(syscall.SIGQUIT, true) // its goroutines are in its log
		<-p.gone
	}
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
