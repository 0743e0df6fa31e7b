package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/test/testkit"
)

// evenly waits until each process holds its share and all shards are held once.
func (w *world) evenly(want ...int) {
	w.t.Helper()
	w.awaitSQL("every shard is held by its share", `coalesce((SELECT array_agg(n ORDER BY n) FROM
		(SELECT count(*)::int n FROM message_outbox_lease WHERE holder IS NOT NULL GROUP BY holder) x), '{}'::int[]) = $1::int[]`, append([]int{}, want...))
}

// A7 and A11: a newcomer gets its share, and a process that leaves hands its shards over at once.
func TestProcessesShareTheShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	a := w.start(options{})
	w.evenly(8)
	b := w.start(options{})
	w.evenly(4, 4)
	c := w.start(options{})
	w.evenly(2, 3, 3)
	for _, p := range []*process{a, b, c} {
		if n := len(p.held()); n < 2 || n > 3 {
			t.Errorf("a process reports %d shards", n)
		}
	}
	for i := range 40 {
		w.put("k"+string(rune('a'+i%20)), 2)
	}
	w.awaitEmpty()

	began := time.Now()
	if err := b.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	w.evenly(4, 4)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the others took %v to take over, although the lease was given back", took)
	}
	for _, p := range []*process{a, c} {
		if err := p.stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
	w.evenly()
	if got := testkit.Value[int64](w.DB, `SELECT count(*) FROM message_outbox_member`); got != 0 {
		t.Errorf("%d processes are still listed", got)
	}
}

// S05: a process that is killed needs no one to tell of it; its lease runs out.
func TestTheShardsOfAKilledProcessAreTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	a := w.start(options{config: short})
	w.evenly(4)
	w.start(options{config: short})
	w.evenly(2, 2)
	a.kill()
	w.evenly(4)
	w.put("a", 3)
	w.put("b", 3)
	w.awaitEmpty()
	w.inOrder("a", 3)
	w.inOrder("b", 3)
}

func TestASecondRelayIsToldThatTheTableIsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.start(options{})
	w.evenly(2)
	second := w.start(options{relay: "shop/copy", config: func(c *relay.Config) {
		c.Backoff = retry.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond}
	}})
	testkit.Eventually(t, patience, "the second relay says why it does nothing", func() bool {
		got := second.condition("TableInUse")
		return strings.HasPrefix(got, "True OwnedByOther") && strings.Contains(got, "shop/orders")
	})
	if got := second.held(); len(got) != 0 {
		t.Errorf("the second relay holds %v", got)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(
		t,
		patience,
		"the second relay takes the free table",
		func() bool { return len(second.held()) == 2 },
	)
	if got := second.condition("TableInUse"); got != "" {
		t.Errorf("TableInUse = %q afterwards", got)
	}
	w.put("k", 2)
	w.awaitEmpty()
	w.inOrder("k", 2)
}

func TestTheWatchdogHearsOfEveryLoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	dog := newDog()
	p := w.process(options{watchdog: dog})
	p.run(t.Context())
	testkit.Eventually(t, patience, "all loops have made a step", func() bool {
		return slices.Equal(dog.loops(), []string{"lane-0", "lane-1", "look", "members"})
	})
	if err := p.stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if left := dog.loops(); len(left) != 0 {
		t.Errorf("loops %v never said that they ended", left)
	}
}
