package jobs

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what an executor tells Prometheus. Durations are in seconds,
// times in seconds since 1970 by Postgres's clock.
type Metrics struct {
	working    prometheus.Gauge
	ended      *prometheus.CounterVec
	backedOff  *prometheus.CounterVec
	reconciled *prometheus.CounterVec
	lost       prometheus.Counter
	lastPass   prometheus.Gauge
	lastBeat   prometheus.Gauge
	abandoned  prometheus.Gauge
}

// NewMetrics registers an executor's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		working:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "executor_runs_working", Help: "Runs this executor works on."}),
		ended:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "executor_runs_ended_total", Help: "Runs this executor ended, by status and failure code."}, []string{"status", "failure_code"}),
		backedOff:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "executor_runs_backed_off_total", Help: "Waits this executor sent runs into, by failure code."}, []string{"failure_code"}),
		reconciled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "executor_reconciled_total", Help: "Runs and jobs that did not agree and were mended, by action."}, []string{"action"}),
		lost:       prometheus.NewCounter(prometheus.CounterOpts{Name: "executor_executors_lost_total", Help: "Executors this one found dead."}),
		lastPass:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "executor_reaper_last_pass_timestamp_seconds", Help: "When any executor last finished a pass of the reaper. Alert when it is old."}),
		lastBeat:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "executor_last_beat_timestamp_seconds", Help: "When this executor's sign of life last reached Postgres."}),
		abandoned:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "executor_hosts_abandoned", Help: "Hosts without a run that could not be deleted at the last try."}),
	}
	r.MustRegister(m.working, m.ended, m.backedOff, m.reconciled, m.lost, m.lastPass, m.lastBeat, m.abandoned)
	return m
}
