package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// shares returns how many shards each holder has, the fewest first.
func (b *bank) shares() []int {
	b.t.Helper()
	return testkit.Values[int](b.orders.DB, `SELECT count(*) FROM message_outbox_lease
		WHERE holder IS NOT NULL AND held_until > clock_timestamp() GROUP BY holder ORDER BY 1`)
}

func (b *bank) shared(within time.Duration, want ...int) {
	b.t.Helper()
	testkit.Eventually(b.t, within, fmt.Sprintf("the shards are shared as %v", want), func() bool {
		return slices.Equal(b.shares(), want)
	})
}

// Workers die one after the other, at any point, while sales are made; each is replaced by a new one.
func TestG1G3G4G5WorkersThatDieAtRandomLoseRepeatAndReorderNothing(t *testing.T) {
	t.Parallel()
	serializable := []testkit.PostgresOption{testkit.Serializable()}
	cases := map[string]struct {
		relays int
		place  bankOptions
	}{
		"with two relays":  {relays: 2},
		"with four relays": {relays: 4},
		"with two relays on databases whose default is SERIALIZABLE": {
			relays: 2, place: bankOptions{orders: serializable, billing: serializable},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, tc.place)
			relays, consumers := make([]*worker, tc.relays), make([]*worker, 2)
			for i := range relays {
				relays[i] = b.startRelay(b.relay)
			}
			for i := range consumers {
				consumers[i] = b.startConsumer(b.consumer) // two on one durable
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				b.killAtRandom(8, relays, consumers)
			}()
			for going := true; going; {
				b.trade(4, 20)
				select {
				case <-done:
					going = false
				default:
				}
			}
			b.balanced()
		})
	}
}

// killAtRandom kills so many workers, one after the other, and starts another in the place of each.
func (b *bank) killAtRandom(n int, relays, consumers []*worker) {
	random := rand.New(rand.NewPCG(11, 17))
	for range n {
		select {
		case <-time.After(200*time.Millisecond + time.Duration(random.Int64N(int64(time.Second)))):
		case <-b.t.Context().Done():
			return
		}
		if i := random.IntN(2 * len(consumers)); i < len(consumers) {
			consumers[i].Kill()
			consumers[i] = b.startConsumer(b.consumer)
		} else {
			i := random.IntN(len(relays))
			relays[i].Kill()
			relays[i] = b.startRelay(b.relay)
		}
	}
}

func TestG1EveryRelayGetsItsShareAndADrainedOneIsTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.startConsumer(b.consumer)
	first := b.startRelay(b.relay)
	b.shared(patience, 4)
	second := b.startRelay(b.relay)
	b.shared(2*leaseDuration, 2, 2)
	third, fourth := b.startRelay(b.relay), b.startRelay(b.relay)
	b.shared(2*leaseDuration, 1, 1, 1, 1)

	b.trade(4, 20)
	// On a busy machine a look may come late, but a hand-over that waits for the lease's end is never this quick.
	quickest := leaseDuration
	for i, leaves := range []*worker{first, third, second} {
		leaves.drain()
		began := time.Now()
		b.shared(leaseDuration, [][]int{{1, 1, 2}, {2, 2}, {4}}[i]...)
		quickest = min(quickest, time.Since(began))
	}
	if quickest >= 2*time.Second {
		t.Errorf("the quickest of three hand-overs took %v, want less than 2 s", quickest)
	}
	b.trade(4, 20)
	b.balanced()

	fourth.drain()
	if got := b.shares(); len(got) != 0 {
		t.Errorf("shards are still held by %d processes that have left", len(got))
	}
}

// The zombie has published into a network that stands still. It is stopped, its shards pass on, later messages of its
// keys arrive; then network and zombie wake up: its old messages reach the broker late, as duplicates, and its settle
// moves nothing.
func TestG4AZombieThatWakesUpAfterItsLeaseRepeatsOldMessagesAndSettlesNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	broker := testkit.Proxy(t, b.broker.Addr())
	cfg := b.relayBehind(nil, broker)
	cfg.Lease = config.Duration(8 * time.Second)
	cfg.Batch.PublishTimeout = config.Duration(2900 * time.Millisecond) // still waiting when it is stopped
	zombie, _ := b.underWay(cfg, b.consumer)

	broker.HalfOpen()
	sent := broker.Taken(testkit.ToServer)
	const size = 16 << 10
	var old, later, last []sale
	for i := range 8 {
		account := fmt.Sprintf("stopped-%d", i)
		old = append(old, sale{account: account, amount: 1, padding: size})
		later, last = append(later, sale{account: account, amount: 2}), append(last, sale{account: account, amount: 3})
	}
	// In one transaction: a shard whose first of several was read alone sends no other while that has no answer.
	if err := b.commit(t.Context(), false, old...); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, "the relay has sent at least three messages to their last byte", func() bool {
		return broker.Taken(testkit.ToServer) > sent+4*size
	})
	zombie.signal(syscall.SIGSTOP)
	next := launch(t, commands.in(t), "relay", b.relay)
	b.sell(later...)
	b.balanced()
	b.forgotten()

	broker.Resume()
	zombie.signal(syscall.SIGCONT)
	b.sell(last...)
	testkit.Eventually(t, patience, "the zombie has its share again", func() bool {
		return slices.Equal(b.shares(), []int{2, 2})
	})
	if got := duplicates(b.balanced()); got == 0 {
		t.Error("no duplicate: what the zombie had sent never arrived")
	}
	if got := zombie.metric("postrider_outbox_stale_lease_writes_total"); got == 0 {
		t.Error("nothing of the zombie's was refused: it never noticed that it was one")
	}
	if !next.running() || !zombie.running() {
		t.Error("a relay has ended")
	}
}

// A transaction takes its positions early and commits late, below what was read and published long ago. The key's next
// writer waits for it, and follows in the same instant.
func TestG4ACommitThatArrivesLateKeepsItsPlace(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.startRelay(b.relay)
	b.startConsumer(b.consumer)
	b.sell(sale{account: "late", amount: 1})
	for range 5 {
		late, err := b.orders.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.writeIn(late, sale{account: "late", amount: 10}, sale{account: "late", amount: 20})
		followed := make(chan error, 1)
		go func() { followed <- b.commit(t.Context(), false, sale{account: "late", amount: 30}) }() // waits for the key's row
		b.trade(4, 10)
		sold := testkit.Value[int](b.orders.DB, "SELECT count(*) FROM sale")
		testkit.Eventually(t, patience, "what came later is published", func() bool { return b.published() == sold })
		if err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-followed; err != nil {
			t.Fatal(err)
		}
	}
	b.balanced()
}

// writeIn writes sales and their messages in a transaction that stays open.
func (b *bank) writeIn(tx pgx.Tx, sales ...sale) {
	b.t.Helper()
	for _, s := range sales {
		_, err := tx.Exec(b.t.Context(), "INSERT INTO sale (account, amount) VALUES ($1, $2)", s.account, s.amount)
		if err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.writer.Write(b.t.Context(), tx, s.message()); err != nil {
			b.t.Fatal(err)
		}
	}
}

// Whoever delivers twice, be it the broker or another producer of the same records, changes nothing.
func TestG5AMessageThatIsDeliveredTwiceIsAppliedOnce(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.startRelay(b.relay)
	b.startConsumer(b.consumer)
	b.startConsumer(b.consumer)
	b.trade(4, 20)
	b.balanced()

	stream, err := b.js.Stream(t.Context(), b.stream.Name)
	if err != nil {
		t.Fatal(err)
	}
	stored := stream.CachedInfo().State.Msgs
	b.repeat(stream, stored)
	b.trade(4, 20)
	report := b.balanced()
	if got := duplicates(report); got < int64(stored) {
		t.Errorf("%d duplicates in the stream, want at least %d: the test repeats nothing", got, stored)
	}
}

// A key's lock is what keeps two consumers of one durable from applying its messages at the same time.
func TestG4G5TwoConsumersOnOneDurableShareItsKeys(t *testing.T) {
	t.Parallel()
	b := newBank(t, bankOptions{})
	b.startRelay(b.relay)
	one, two := b.startConsumer(b.consumer), b.startConsumer(b.consumer)
	b.trade(8, 60)
	b.balanced()
	var applied [2]int64
	for i, w := range []*worker{one, two} {
		applied[i] = w.Report(context.WithoutCancel(t.Context())).Consumer.AppliedTotal
	}
	if entries := int64(b.entries()); applied[0] == 0 || applied[1] == 0 || applied[0]+applied[1] != entries {
		t.Errorf("the consumers applied %v of %d messages, want a part each", applied, entries)
	}
}
