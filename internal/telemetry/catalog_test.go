package telemetry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/telemetry"
)

func TestACatalogListsMetricsThatNobodyCountedYet(t *testing.T) {
	t.Parallel()
	var c telemetry.Catalog
	c.MustRegister(
		prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "took_seconds", Help: "How long."}, []string{"broker"}),
		prometheus.NewHistogram(prometheus.HistogramOpts{Name: "size_bytes", Help: "How much."}),
		prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "results_total", Help: "x"},
			[]string{"broker", "outcome"},
		),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "late_total", Help: "x"}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "read_total", Help: "x"}, func() float64 { return 0 }),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "held", Help: "x"}, []string{"shard"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "backlog", Help: `With "quotes".`}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "info", Help: "x"}, func() float64 { return 1 }),
	)
	want := []telemetry.Metric{
		{Name: "backlog", Type: "gauge", Help: `With "quotes".`},
		{Name: "held", Type: "gauge", Help: "x", Labels: []string{"shard"}},
		{Name: "info", Type: "gauge", Help: "x"},
		{Name: "late_total", Type: "counter", Help: "x"},
		{Name: "read_total", Type: "counter", Help: "x"},
		{Name: "results_total", Type: "counter", Help: "x", Labels: []string{"broker", "outcome"}},
		{Name: "size_bytes", Type: "histogram", Help: "How much."},
		{Name: "took_seconds", Type: "histogram", Help: "How long.", Labels: []string{"broker"}},
	}
	if diff := cmp.Diff(want, c.Metrics()); diff != "" {
		t.Error(diff)
	}
}
