package consumer

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/verdict"
)

// Metrics counts what a consumer does. All labels are closed sets.
type Metrics struct {
	received   *prometheus.CounterVec // broker
	handled    *prometheus.CounterVec // outcome
	buried     *prometheus.CounterVec // reason
	retries    *prometheus.CounterVec // kind
	duplicates prometheus.Counter
	gaps       prometheus.Counter
	givenUp    prometheus.Counter
	duration   prometheus.Histogram
	lag        prometheus.Gauge
	lagAge     prometheus.Gauge
}

// NewMetrics registers the metrics of one consumer.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		received: counters("postrider_inbox_received_messages_total",
			"Messages that the broker delivered, repeated ones included.", "broker"),
		handled: counters("postrider_inbox_handled_messages_total",
			"Messages by what became of them, committed.", "outcome"),
		buried: counters("postrider_inbox_dead_lettered_messages_total",
			"Messages that were set aside as dead letters.", "reason"),
		retries: counters("postrider_inbox_transaction_retries_total",
			"Transactions that were not committed and run again, by cause.", "kind"),
		duplicates: counter("postrider_inbox_duplicates_total",
			"Messages whose id the inbox knew, with the same content."),
		gaps: counter("postrider_inbox_gaps_total",
			"Messages that were parked because a version before them was missing."),
		givenUp: counter("postrider_inbox_gaps_given_up_total",
			"Ranges of missing versions that were skipped after the gap time-out."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "postrider_inbox_handle_duration_seconds", Help: "Time of one transaction over a batch.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "postrider_inbox_lag_messages", Help: "Messages at the broker that are not acknowledged.",
		}),
		lagAge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "postrider_inbox_lag_seconds", Help: "Age of the oldest message that is not acknowledged.",
		}),
	}
	for _, outcome := range []verdict.Action{verdict.Apply, verdict.Skip, verdict.Park, verdict.Bury, verdict.Repeat} {
		m.handled.WithLabelValues(outcome.String())
	}
	for _, reason := range deadletter.Reasons() {
		m.buried.WithLabelValues(string(reason))
	}
	var err error
	for _, c := range []prometheus.Collector{
		m.received, m.handled, m.buried, m.retries, m.duplicates, m.gaps, m.givenUp, m.duration, m.lag, m.lagAge,
	} {
		err = errors.Join(err, r.Register(c))
	}
	return m, err
}

func (m *Metrics) receivedFrom(system string, n int) {
	m.received.WithLabelValues(system).Add(float64(n))
}

// decided counts one committed decision.
func (m *Metrics) decided(d verdict.Decision) {
	if d.Action == verdict.Undecided {
		return
	}
	m.handled.WithLabelValues(d.Action.String()).Inc()
	switch d.Action {
	case verdict.Repeat:
		m.duplicates.Inc()
	case verdict.Bury:
		m.buried.WithLabelValues(string(d.Reason)).Inc()
	case verdict.Park:
		if d.Gap {
			m.gaps.Inc()
		}
	default:
	}
}

func (m *Metrics) gapsGivenUp(n int) { m.givenUp.Add(float64(n)) }

func (m *Metrics) transaction(took time.Duration) { m.duration.Observe(took.Seconds()) }

func (m *Metrics) failed(t *verdict.Trouble) { m.retries.WithLabelValues(t.Kind.String()).Inc() }

// lags writes the lag that the broker tells. now is the pod's clock: the age is for people, nothing decides by it.
func (m *Metrics) lags(l broker.Lag, now time.Time) {
	m.lag.Set(float64(l.Messages))
	age := 0.0
	if l.OldestTime != nil {
		age = max(0, now.Sub(*l.OldestTime).Seconds())
	}
	m.lagAge.Set(age)
}
