package relay_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/test/testkit"
)

func TestACommittedRowIsPublishedAndArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.put("order-1", 3)
	w.put("order-2", 2)
	p := w.start(options{})

	w.awaitEmpty()

	for key, n := range map[string]int{"order-1": 3, "order-2": 2} {
		if diff := cmp.Diff(upTo(n), w.broker.versions(key)); diff != "" {
			t.Errorf("versions of %s (-want +got):\n%s", key, diff)
		}
	}
	if got := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox_published WHERE broker_position LIKE 'ORDERS@%'`); got != 5 {
		t.Errorf("%d rows archived, want 5", got)
	}
	w.put("order-1", 1)
	w.awaitEmpty()
	if err := p.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}
