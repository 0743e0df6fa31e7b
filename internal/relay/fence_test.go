package relay_test

import (
	"context"
	"sync"
	"testing"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// fences remembers under which holding of the shard each publish was made.
type fences struct {
	*ledger

	mu   sync.Mutex
	last map[int16]broker.Fence
	none bool
}

func (f *fences) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got, ok := broker.FenceOf(ctx)
	f.mu.Lock()
	f.none = f.none || !ok
	if f.last == nil {
		f.last = make(map[int16]broker.Fence)
	}
	f.last[got.Shard] = got
	f.mu.Unlock()
	return f.ledger.Publish(ctx, batch)
}

// R4: a broker that can fence is told who publishes, and each holder of a shard counts higher than the one before.
func TestEachPublishNamesTheHoldingThatItIsMadeUnder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for range 2 {
		watch := &fences{ledger: w.broker}
		p := w.start(options{publisher: watch})
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			w.put(key, 3)
		}
		w.awaitEmpty()
		watch.mu.Lock()
		if watch.none || len(watch.last) != 2 {
			t.Errorf("publishes under %+v, without a holding: %v", watch.last, watch.none)
		}
		for shard, f := range watch.last {
			term := testkit.Value[int64](w.DB, `SELECT term FROM message_outbox_lease WHERE shard = $1`, shard)
			if f.Term != term {
				t.Errorf("shard %d: published under term %d, its lease has %d", shard, f.Term, term)
			}
		}
		watch.mu.Unlock()
		if err := p.stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
	if least := testkit.Value[int64](w.DB, `SELECT min(term) FROM message_outbox_lease`); least < 2 {
		t.Errorf("the second holder has term %d", least)
	}
}
