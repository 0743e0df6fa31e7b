package bench

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/message"
)

func TestTheObserverSeesAMessageThatComesBehindALaterOne(t *testing.T) {
	t.Parallel()
	o := newObserver(nullPublisher{})
	send := func(key string, versions ...int64) {
		batch := make([]message.Message, len(versions))
		for i, v := range versions {
			batch[i] = message.Message{OrderingKey: key, AggregateVersion: v, OccurredAt: time.Now().Add(-time.Hour)}
		}
		o.Publish(t.Context(), batch)
	}
	send("a", 1, 2, 4)
	send("b", 1)
	if _, disordered := o.counts(); disordered != 0 {
		t.Fatalf("%d messages count as out of order, and none is", disordered)
	}
	send("a", 3) // behind 4
	send("b", 2)
	confirmed, disordered := o.counts()
	if confirmed != 6 || disordered != 1 {
		t.Errorf("%d confirmed, %d out of order; want 6 and 1", confirmed, disordered)
	}
	if got := o.forget(); len(got) != 6 || got[0] < time.Hour {
		t.Errorf("latencies %v", got)
	}
	if got := o.forget(); len(got) != 0 {
		t.Errorf("%d latencies are counted twice", len(got))
	}
}
