package relay_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/test/testkit"
)

// seldom is a config that never looks by itself while a test runs, or nearly so.
func seldom(c *relay.Config) { c.Batch.PollInterval = time.Minute }

// atRest starts a relay and waits until each of its lanes has found nothing to do.
func (w *world) atRest(h *hooks) *process {
	w.t.Helper()
	p := w.start(options{wrap: h.wrap, config: seldom})
	testkit.Eventually(w.t, patience, "each lane has found nothing to do", func() bool {
		held, _ := p.Report(w.t.Context())
		return len(held.HeldShards) == w.shards && h.claims.Load() >= int64(w.shards)
	})
	return p
}

func TestARelayThatIsToldOfACommitLooksAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	p := w.atRest(&hooks{})
	for i := range 5 {
		w.put("order-1", 1)
		w.put("order-2", 1)
		p.Committed()
		testkit.Eventually(t, patience, "the messages are sent", func() bool { return w.broker.count() == 2*(i+1) })
	}
	w.inOrder("order-1", 5)
	w.inOrder("order-2", 5)
}

// A relay that looks seldom is told to look often: that holds for the wait that it is in.
func TestAShorterPollIntervalEndsTheLongWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	p := w.atRest(&hooks{})
	w.put("order-1", 1)
	p.cfg.Batch.PollInterval = 10 * time.Millisecond
	if err := p.Reconfigure(p.cfg); err != nil {
		t.Fatal(err)
	}
	w.awaitEmpty()
}

// However many commits it is told of, a relay that finds nothing asks the database no more often than it can answer.
func TestManyCommitsAreFewLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	h := &hooks{}
	p := w.atRest(h)
	before, began := h.looks.Load(), time.Now()
	for range 100 {
		for range 1000 {
			p.Committed()
		}
		<-time.After(time.Millisecond)
	}
	testkit.Eventually(t, patience, "it looks", func() bool { return h.looks.Load() > before })
	looks := h.looks.Load() - before
	if most := int64(time.Since(began)/(2*time.Millisecond)) + 2; looks > most {
		t.Errorf("%d looks, want at most %d", looks, most)
	}
}
