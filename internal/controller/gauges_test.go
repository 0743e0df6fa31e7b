package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/internal/status"
)

// Contract G11 holds for monitors too: what nobody knows has no sample, and a resource that is gone has none at all.
func TestGaugesShowWhatIsKnown(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	gauges, err := NewGauges(registry)
	if err != nil {
		t.Fatal(err)
	}
	orders := types.NamespacedName{Namespace: "shop", Name: "orders"}
	seven, none := int64(7), int64(0)
	shows := func(when string, want ...string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got = append(got, strings.TrimPrefix(f.GetName(), "postrider_resource_")+"="+m.GetGauge().String())
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %v, want %v", when, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %s, want %s", when, got[i], want[i])
			}
		}
	}

	gauges.show("OutboxRelay", orders, status.Summary{
		Ready: metav1.ConditionTrue, Messages: &seven, Oldest: &metav1.Time{Time: metav1.Unix(12, 0).Time},
		DeadLetters: &none, Observed: &metav1.Time{Time: metav1.Unix(20, 0).Time},
	})
	shows("all is known", "observed_timestamp_seconds=value:20", "oldest_message_timestamp_seconds=value:12",
		"open_dead_letters=value:0", "ready=value:1", "waiting_messages=value:7")
	gauges.show("OutboxRelay", orders, status.Summary{Ready: metav1.ConditionFalse})
	shows("the database is down", "ready=value:0")
	gauges.show("OutboxRelay", orders, status.Summary{Ready: metav1.ConditionUnknown})
	shows("nobody reports")
	gauges.show("OutboxRelay", orders, status.Summary{Ready: metav1.ConditionTrue})
	gauges.forget("OutboxRelay", orders)
	shows("the resource is gone")
	(*Gauges)(nil).show("OutboxRelay", orders, status.Summary{}) // a manager without gauges

	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
