package relay

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// reasonOther is the label of a reason that is not listed, such as none at all.
const reasonOther = "Other"

// Metrics counts what a relay does. All labels are closed sets.
type Metrics struct {
	backlog     prometheus.Gauge
	lag         prometheus.Gauge
	claimed     prometheus.Counter
	results     *prometheus.CounterVec
	failures    *prometheus.CounterVec
	database    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	held        *prometheus.GaugeVec
	failing     prometheus.Gauge
	transitions prometheus.Counter
	late        prometheus.Counter
	vanished    prometheus.Counter
	resettled   prometheus.Counter
	expired     prometheus.Counter
	zombies     prometheus.Counter
	dead        *prometheus.CounterVec
	markers     prometheus.Counter
}

// NewMetrics registers the metrics of one relay. Two relays of one process need registries that tell them apart.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	f := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "postrider", Subsystem: "outbox", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: "postrider", Subsystem: "outbox", Name: name, Help: help}
	}
	return &Metrics{
		backlog: f.NewGauge(gauge("backlog_messages", "Rows of the held shards that are not settled.")),
		lag: f.NewGauge(
			gauge("lag_seconds", "Age of the oldest row of the held shards that is not settled or blocked."),
		),
		claimed: counter("claimed_messages_total", "Rows read to be published."),
		results: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "postrider", Subsystem: "outbox", Name: "publish_results_total",
			Help: "Answers of the broker, by outcome.",
		}, []string{"broker", "outcome"}),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "postrider", Subsystem: "outbox", Name: "publish_failures_total",
			Help: "Answers of the broker other than confirmed, by outcome and reason.",
		}, []string{"broker", "outcome", "reason"}),
		database: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "postrider", Subsystem: "outbox", Name: "database_failures_total",
			Help: "Calls of the database that failed, by reason. They are repeated.",
		}, []string{"reason"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "postrider", Subsystem: "outbox", Name: "publish_duration_seconds",
			Help:    "Time from handing a batch to the broker's client to the last answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"broker"}),
		held: f.NewGaugeVec(gauge("lease_held", "1 for each shard that this process holds."), []string{"shard"}),
		failing: f.NewGauge(gauge(
			"failing_units",
			"Parts of the broker, such as partitions, that take no messages as far as this process knows.",
		)),
		transitions: counter("lease_transitions_total", "Shards taken, given back and lost."),
		late:        counter("late_rows_total", "Rows found below a later row of their key that was sent."),
		vanished: counter(
			"vanished_rows_total",
			"Confirmed rows that were neither in the outbox nor in the archive.",
		),
		resettled: counter(
			"resettled_rows_total",
			"Confirmed rows that an earlier settle, whose answer was lost, had moved.",
		),
		expired: counter(
			"expired_messages_total",
			"Messages that were archived unsent, since nobody wants them any more.",
		),
		dead: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "postrider", Subsystem: "outbox", Name: "dead_lettered_messages_total",
			Help: "Messages whose retry budget was spent, by the reason of the last failure.",
		}, []string{"reason"}),
		markers: counter(
			"dropped_markers_total",
			"Markers of skipped or discarded messages that could not be published within their budget.",
		),
		zombies: counter("stale_lease_writes_total", "Results dropped because the shard had passed on."),
	}
}

// published records the answers to one batch.
func (m *Metrics) published(system string, b *batch, took time.Duration) {
	var by [broker.Unavailable + 1]int
	for i := range b.got {
		if b.got[i].Position == placeExpired {
			m.expired.Inc()
			continue
		}
		if b.got[i].Reason == broker.ReasonNotSent {
			continue
		}
		by[b.got[i].Outcome]++
		if outcome := b.got[i].Outcome; outcome != broker.Confirmed {
			m.failures.WithLabelValues(system, outcome.String(), reasonLabel(b.got[i].Reason)).Inc()
		}
	}
	for outcome, n := range by {
		if n > 0 {
			m.results.WithLabelValues(system, broker.Outcome(outcome).String()).
				Add(float64(n))
		}
	}
	if len(b.send) > 0 {
		m.duration.WithLabelValues(system).Observe(took.Seconds())
	}
}

// reasons are the labels; each message that fails is looked up in them.
var reasons = broker.Reasons()

// reasonLabel keeps the label a closed set, whatever an adapter or a row's defect says.
func reasonLabel(r broker.Reason) string {
	if slices.Contains(reasons, r) {
		return string(r)
	}
	return reasonOther
}

// storeFailed records a call of the database that failed. Store.Explain gives its reason out of a closed set.
func (m *Metrics) storeFailed(reason string) { m.database.WithLabelValues(reason).Inc() }

// buried records that a row's budget is spent.
func (m *Metrics) buried(r *shard.Row, reason string) {
	if r.Type == message.SkippedType {
		m.markers.Inc()
		return
	}
	m.dead.WithLabelValues(reason).Inc()
}

// settled records what a settle did not find.
func (m *Metrics) settled(s shard.Settlement) {
	if s.Already > 0 {
		m.resettled.Add(float64(s.Already))
	}
	if s.Vanished > 0 {
		m.vanished.Add(float64(s.Vanished))
	}
}

// took records that this process took a shard.
func (m *Metrics) took(shard int16) {
	m.transitions.Inc()
	m.held.WithLabelValues(strconv.Itoa(int(shard))).Set(1)
}

// gave records that a shard is no longer this process's.
func (m *Metrics) gave(shard int16) {
	m.transitions.Inc()
	m.held.WithLabelValues(strconv.Itoa(int(shard))).Set(0)
}

// observed records what is not settled.
func (m *Metrics) observed(b shard.Backlog) {
	m.backlog.Set(float64(b.Ready + b.Retrying + b.Blocked))
	lag := 0.0
	if b.OldestAt != nil {
		lag = max(0, b.ObservedAt.Sub(*b.OldestAt).Seconds())
	}
	m.lag.Set(lag)
}
