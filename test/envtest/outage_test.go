//go:build kubernetes

package envtest

import (
	"fmt"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
)

// Contract G9: without operator and API server the workers move messages on, also those that the node starts anew.
func TestG9WorkersGoOnWithoutOperatorAndAPIServer(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.apply()
	n := m.runNode(buildCommands(t))
	m.shows("all to be ready", func(r *v1alpha1.OutboxRelayStatus, c *v1alpha1.InboxConsumerStatus) string {
		if !is(r.Conditions, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady) ||
			!is(c.Conditions, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady) {
			return "not ready"
		}
		return ""
	})
	arrive := func(when string, want int) {
		t.Helper()
		eventually(t, when, func() string {
			if got := m.effects(); got != want {
				return fmt.Sprintf("%d effects, want %d", got, want)
			}
			return ""
		})
	}
	m.write("order-1", 20, sale)
	arrive("effects while all is there", 20)

	m.endOperator()
	m.write("order-1", 20, sale)
	arrive("effects without the operator", 40)

	m.endPlane()
	m.write("order-1", 20, sale)
	arrive("effects without the API server", 60)

	n.kill(syscall.SIGKILL)
	m.write("order-1", 20, sale)
	arrive("effects of workers that were killed meanwhile", 80)
	var once, ordered bool
	if err := m.billing.QueryRow(t.Context(), `SELECT count(DISTINCT event_id) = count(*),
		array_agg(version ORDER BY entry) = array_agg(version ORDER BY version) FROM ledger`).Scan(&once, &ordered); err != nil {
		t.Fatal(err)
	}
	if !once || !ordered {
		t.Errorf("effects once: %v, in order: %v", once, ordered)
	}
}
