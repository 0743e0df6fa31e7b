package controller

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/internal/status"
)

// Gauges show to Prometheus how each resource stands, as its status does and as fresh as the last look. What nobody
// knows has no sample, and never 0. Only the manager that works has any.
type Gauges struct {
	ready, messages, oldest, deadLetters, observed *prometheus.GaugeVec
}

// NewGauges registers the gauges.
func NewGauges(r prometheus.Registerer) (*Gauges, error) {
	var errs []error
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "postrider", Subsystem: "resource", Name: name, Help: help,
		}, []string{"kind", "namespace", "name"})
		errs = append(errs, r.Register(g))
		return g
	}
	g := &Gauges{
		ready:    gauge("ready", "1 if the resource's condition Ready is True, 0 if it is False."),
		messages: gauge("waiting_messages", "Messages of the backlog of a relay or the lag of a consumer."),
		oldest: gauge("oldest_message_timestamp_seconds",
			"When the oldest waiting message was written, in seconds since 1970."),
		deadLetters: gauge("open_dead_letters", "Dead letters that wait for a person."),
		observed: gauge("observed_timestamp_seconds",
			"When the numbers were taken, by the database's clock, in seconds since 1970."),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register gauges: %w", err)
	}
	return g, nil
}

// show sets the gauges of a resource.
func (g *Gauges) show(kind string, key types.NamespacedName, s status.Summary) {
	if g == nil {
		return
	}
	labels := []string{kind, key.Namespace, key.Name}
	var ready *float64
	switch s.Ready {
	case metav1.ConditionTrue:
		ready = new(1.0)
	case metav1.ConditionFalse:
		ready = new(0.0)
	default:
	}
	set(g.ready, labels, ready)
	set(g.messages, labels, number(s.Messages))
	set(g.oldest, labels, seconds(s.Oldest))
	set(g.deadLetters, labels, number(s.DeadLetters))
	set(g.observed, labels, seconds(s.Observed))
}

// forget takes a resource that is no more out of all gauges.
func (g *Gauges) forget(kind string, key types.NamespacedName) { g.show(kind, key, status.Summary{}) }

func set(g *prometheus.GaugeVec, labels []string, value *float64) {
	if value == nil {
		g.DeleteLabelValues(labels...)
		return
	}
	g.WithLabelValues(labels...).Set(*value)
}

func number(n *int64) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

func seconds(t *metav1.Time) *float64 {
	if t == nil {
		return nil
	}
	return new(float64(t.Unix()))
}
