package up

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/verdict"
)

// The metrics that the summary adds up. They outlive the parts of a worker, and the worker.
const (
	publishResultsMetric = "postrider_outbox_publish_results_total"
	handledMetric        = "postrider_inbox_handled_messages_total"
	duplicatesMetric     = "postrider_inbox_duplicates_total"
	outcomeLabel         = "outcome"
)

// totals is what workers did in this run.
type totals struct {
	published, applied, duplicates int64
	dropped                        int
}

// add counts what one worker did.
func (t *totals) add(registry prometheus.Gatherer) {
	families, err := registry.Gather()
	if err != nil {
		return // of a registry of counters only; it cannot contradict itself
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			n := int64(m.GetCounter().GetValue())
			switch family.GetName() {
			case publishResultsMetric:
				if label(m, outcomeLabel) == broker.Confirmed.String() {
					t.published += n
				}
			case handledMetric:
				if label(m, outcomeLabel) == verdict.Apply.String() {
					t.applied += n
				}
			case duplicatesMetric:
				t.duplicates += n
			default:
			}
		}
	}
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// droppedWords tells of the workers that were dropped on the way. What such a worker committed last it could not count,
// which shows as duplicates of others.
func (t *totals) droppedWords() string {
	if t.dropped == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s dropped on the way; what was in flight there is not counted)", plural(t.dropped, "worker"))
}

// plural writes a number with its noun.
func plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
