package relay_test

import (
	"sync/atomic"
	"testing"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// A release sets rows free far below what was read. Their successor, committed in the same instant, must not pass them.
func TestRowsSetFreeAreSentBeforeTheirSuccessors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	head := w.put("k", 4)[0]
	var refusing atomic.Bool
	refusing.Store(true)
	w.broker.script(func(m message.Message) (broker.Confirmation, bool) {
		if m.ID == head.ID && refusing.Load() {
			return rejected, false
		}
		return confirmed, true
	})
	h := &hooks{}
	var released atomic.Int64
	h.settleDue = func(call func() error) error {
		err := call()
		if err == nil && released.Add(1) == 1 {
			w.put("k", 2)
		}
		return err
	}
	w.start(options{wrap: h.wrap})
	w.awaitSQL("the key waits", `count(*) = 4 AND bool_and(held) FROM message_outbox`)
	w.put("other", 50) // lets the floor rise far above the waiting key
	w.awaitSQL("the others are through", `count(*) = 4 FROM message_outbox`)
	refusing.Store(false)
	w.awaitEmpty()
	w.inOrder("k", 6)
	if released.Load() == 0 {
		t.Error("no key was released: this test shows nothing")
	}
}
