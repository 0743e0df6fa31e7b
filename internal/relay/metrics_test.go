package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// Names, types and labels of metrics are API: a rename must be seen.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	m.took(3)
	m.storeFailed("Unreachable")
	m.buried(&shard.Row{}, "TooLarge")
	m.published(
		"nats",
		&batch{
			rows: make([]shard.Row, 2), got: []broker.Confirmation{took, refused}, send: make([]message.Message, 2),
		},
		time.Second,
	)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		line := f.GetName() + " " + f.GetType().String()
		for _, label := range f.GetMetric()[0].GetLabel() {
			line += " " + label.GetName()
		}
		got = append(got, line)
	}
	slices.Sort(got)
	want := []string{
		"postrider_outbox_backlog_messages GAUGE",
		"postrider_outbox_claimed_messages_total COUNTER",
		"postrider_outbox_database_failures_total COUNTER reason",
		"postrider_outbox_dead_lettered_messages_total COUNTER reason",
		"postrider_outbox_dropped_markers_total COUNTER",
		"postrider_outbox_expired_messages_total COUNTER",
		"postrider_outbox_failing_units GAUGE",
		"postrider_outbox_lag_seconds GAUGE",
		"postrider_outbox_late_rows_total COUNTER",
		"postrider_outbox_lease_held GAUGE shard",
		"postrider_outbox_lease_transitions_total COUNTER",
		"postrider_outbox_publish_duration_seconds HISTOGRAM broker",
		"postrider_outbox_publish_failures_total COUNTER broker outcome reason",
		"postrider_outbox_publish_results_total COUNTER broker outcome",
		"postrider_outbox_resettled_rows_total COUNTER",
		"postrider_outbox_stale_lease_writes_total COUNTER",
		"postrider_outbox_vanished_rows_total COUNTER",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestMetricsCountWhatHappened(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	b := &batch{rows: make([]shard.Row, 6), got: []broker.Confirmation{
		took, took, refused, notSent,
		{Outcome: broker.Confirmed, Position: placeExpired},
		{Outcome: broker.Rejected, Reason: "orders-7 is too long"},
	}}
	m.published("nats", b, time.Second)
	m.settled(shard.Settlement{Already: 2, Vanished: 1})
	old := time.Unix(100, 0)
	m.observed(shard.Backlog{ObservedAt: time.Unix(130, 0), Ready: 4, Retrying: 2, Blocked: 1, OldestAt: &old})
	for name, c := range map[string]struct {
		got  prometheus.Collector
		want float64
	}{
		"confirmed": {m.results.WithLabelValues("nats", "confirmed"), 2},
		"rejected":  {m.results.WithLabelValues("nats", "rejected"), 2},
		"too large": {m.failures.WithLabelValues("nats", "rejected", "TooLarge"), 1},
		"unlisted":  {m.failures.WithLabelValues("nats", "rejected", reasonOther), 1},
		"not sent":  {m.results.WithLabelValues("nats", "unavailable"), 0},
		"expired":   {m.expired, 1},
		"resettled": {m.resettled, 2},
		"vanished":  {m.vanished, 1},
		"backlog":   {m.backlog, 7},
		"lag":       {m.lag, 30},
	} {
		if got := testutil.ToFloat64(c.got); got != c.want {
			t.Errorf("%s = %v, want %v", name, got, c.want)
		}
	}
	if n := testutil.CollectAndCount(m.failures); n != 2 {
		t.Errorf("%d kinds of failures, want 2: what was not sent has not failed", n)
	}
}
