package consumer_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/test/testkit"
)

func TestMessagesAreAppliedOnceInOrderAndAcknowledged(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()

	const keys, versions = 50, 20
	for v := range int64(versions) {
		for k := range keys {
			s.publish(ev(fmt.Sprintf("order-%d", k), v+1))
		}
	}

	s.acked(keys*versions, w)
	if got := s.countEffects(); got != keys*versions {
		t.Errorf("effects = %d, want %d", got, keys*versions)
	}
	s.once()
	s.tidy()
	w.says("DatabaseReachable", "True", "Reachable")
	w.says("SchemaReady", "True", "SchemaCurrent")
	w.says("SourceReachable", "True", "Reachable")
	if got := w.metric("postrider_inbox_handled_messages_total", "applied"); got != keys*versions {
		t.Errorf("applied counter = %v, want %d", got, keys*versions)
	}
	report, _ := w.Report(t.Context())
	if report.AppliedTotal != keys*versions || report.LastAppliedTime == nil || *report.Parked != 0 {
		t.Errorf("report = %+v", report)
	}
}

func TestADuplicateIsAcknowledgedAndHasNoEffect(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	w := s.start()

	s.publish(ev("k", 1), ev("k", 1)) // within one batch, or after it
	s.acked(2, w)
	s.publish(ev("k", 1), ev("k", 2))
	s.acked(4, w)

	if diff := cmp.Diff([]string{"k@1", "k@2"}, s.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	if got := w.metric("postrider_inbox_duplicates_total"); got != 2 {
		t.Errorf("duplicates = %v, want 2", got)
	}
	if left := testkit.Values[string](s.DB, `SELECT reason FROM message_failure`); len(left) > 0 {
		t.Errorf("dead letters: %v", left)
	}
}
