package telemetry

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Catalog is a registerer that remembers what is registered, so that the names, types and labels of metrics
// can be listed before anything was counted.
type Catalog struct{ entries []Metric }

// Metric describes one metric.
type Metric struct {
	Name   string
	Type   string
	Help   string
	Labels []string
}

var _ prometheus.Registerer = (*Catalog)(nil)

// description reads a prometheus.Desc, which has no other way to tell what it holds.
var description = regexp.MustCompile(
	`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*").*, variableLabels: \{(.*)\}\}$`)

// Register implements prometheus.Registerer.
func (c *Catalog) Register(collector prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		collector.Describe(descriptions)
	}()
	var err error
	for d := range descriptions {
		m, readErr := describe(d.String())
		err = errors.Join(err, readErr)
		m.Type = typeOf(collector)
		c.entries = append(c.entries, m)
	}
	return err
}

func describe(text string) (Metric, error) {
	found := description.FindStringSubmatch(text)
	if found == nil {
		return Metric{}, fmt.Errorf("read the description of a metric: %s", text)
	}
	name, nameErr := strconv.Unquote(found[1])
	help, helpErr := strconv.Unquote(found[2])
	m := Metric{Name: name, Help: help}
	if found[3] != "" {
		m.Labels = strings.Split(found[3], ",")
	}
	return m, errors.Join(nameErr, helpErr)
}

// MustRegister implements prometheus.Registerer.
func (c *Catalog) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		if err := c.Register(collector); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer. A catalog forgets nothing.
func (*Catalog) Unregister(prometheus.Collector) bool { return false }

// Metrics returns what was registered, in order of name.
func (c *Catalog) Metrics() []Metric {
	sorted := slices.Clone(c.entries)
	slices.SortFunc(sorted, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}

// typeOf names the type of a collector: a vector by its Go type, a single metric by what it writes.
func typeOf(c prometheus.Collector) string {
	const unknown = "unknown"
	switch v := c.(type) {
	case *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.CounterVec:
		return "counter"
	case prometheus.Metric:
		var written dto.Metric
		if err := v.Write(&written); err != nil {
			return unknown
		}
		switch {
		case written.GetHistogram() != nil:
			return "histogram"
		case written.GetGauge() != nil:
			return "gauge"
		case written.GetCounter() != nil:
			return "counter"
		}
	}
	return unknown
}
