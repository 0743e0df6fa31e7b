package kafka

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// hold returns a receiver that holds one partition with records of the offsets, and no client.
func hold(t *testing.T, offsets ...int64) (*Receiver, *partition) {
	t.Helper()
	r := &Receiver{
		cfg: ReceiverConfig{}.withDefaults(), now: time.Now, changed: make(chan struct{}),
		room: make(chan struct{}, 1), done: make(chan struct{}, 1), parts: make(map[place]*partition),
	}
	p := newPartition(place{"orders", 3})
	r.parts[p.place] = p
	for _, offset := range offsets {
		p.add(r, &kgo.Record{Topic: "orders", Partition: 3, Offset: offset, LeaderEpoch: 7})
	}
	return r, p
}

// What the group keeps is never behind an unfinished record, whatever the order of acknowledgements and releases.
func TestNothingUnfinishedIsEverCommitted(t *testing.T) {
	t.Parallel()
	const records = 200
	random := rand.New(rand.NewPCG(1, 2))
	offsets := make([]int64, records)
	at := int64(10)
	for i := range offsets {
		at += 1 + int64(random.IntN(3)) // compaction and transactions leave holes
		offsets[i] = at
	}
	r, p := hold(t, offsets...)
	unfinished := make(map[int64]bool, records)
	for _, offset := range offsets {
		unfinished[offset] = true
	}
	for len(unfinished) > 0 {
		got, _ := r.take()
		if len(got) == 0 {
			t.Fatalf("%d records are unfinished, and none is handed out", len(unfinished))
		}
		random.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		for _, d := range got {
			if random.IntN(3) == 0 {
				_ = d.Release(t.Context(), 0)
			} else {
				_ = d.Ack(t.Context())
				delete(unfinished, int64(d.Sequence))
			}
			lowest := p.next
			for offset := range unfinished {
				lowest = min(lowest, offset)
			}
			if p.position() != lowest {
				t.Fatalf("position %d, and the lowest unfinished record is %d", p.position(), lowest)
			}
		}
	}
	if p.position() != at+1 || p.epoch != 7 || p.out != 0 || p.outBytes != 0 {
		t.Errorf("at the end: position %d of %d, epoch %d, %d out", p.position(), at+1, p.epoch, p.out)
	}
}

func TestReleasedRecordsComeAgainInTheirOrderAndBeforeLaterOnes(t *testing.T) {
	t.Parallel()
	r, p := hold(t, 1, 2, 3, 4, 5, 6)
	r.cfg.Prefetch = 4
	got, _ := r.take()
	if len(got) != 4 {
		t.Fatalf("%d handed out, prefetch is 4", len(got))
	}
	_ = got[3].Release(t.Context(), 0)
	_ = got[1].Release(t.Context(), 0)
	_ = got[1].Release(t.Context(), 0) // a second word changes nothing
	again, _ := r.take()
	if len(again) != 2 || again[0].Sequence != 2 || again[1].Sequence != 4 || again[0].Deliveries != 2 {
		t.Fatalf("after the release: %+v", again)
	}
	if p.out != 4 {
		t.Errorf("%d are out, want 4", p.out)
	}
}

func TestAPauseHoldsUpThePartitionAndNoOther(t *testing.T) {
	t.Parallel()
	r, p := hold(t, 1, 2)
	now := time.Now()
	r.now = func() time.Time { return now }
	other := newPartition(place{"orders", 4})
	r.parts[other.place] = other
	r.cfg.Prefetch = 2
	got, _ := r.take()
	for _, d := range got {
		_ = d.Release(t.Context(), time.Minute)
	}
	if n, _ := r.free(); n != 2 {
		t.Errorf("room for %d of 2: what waits for its pause keeps others out", n)
	}
	if got, due := r.take(); len(got) != 0 || due != time.Minute {
		t.Errorf("%d handed out during the pause, next look in %s", len(got), due)
	}
	other.add(r, &kgo.Record{Topic: "orders", Partition: 4, Offset: 9})
	if got, _ := r.take(); len(got) != 1 || got[0].Position != "orders/4@9" {
		t.Errorf("of the other partition: %+v", got)
	}
	now = now.Add(time.Minute)
	if got, _ := r.take(); len(got) != 1 || got[0].Position != "orders/3@1" || !p.due.Equal(now) {
		t.Errorf("after the pause: %+v", got)
	}
}

func TestWhatWasGivenAwayIsNeitherHandedOutNorCommitted(t *testing.T) {
	t.Parallel()
	r, p := hold(t, 1, 2, 3)
	r.cfg.Prefetch = 2
	got, _ := r.take()
	p.leaving = true
	_ = got[0].Ack(t.Context())
	if more, _ := r.take(); len(more) != 0 {
		t.Errorf("%d handed out of a partition that leaves", len(more))
	}
	if offsets := r.toCommit(); offsets["orders"][3].Offset != 2 {
		t.Errorf("to commit when it leaves: %v", offsets)
	}
	r.forget(map[string][]int32{"orders": {3}})
	_ = got[1].Ack(t.Context())
	if offsets := r.toCommit(); len(offsets) != 0 {
		t.Errorf("to commit after it has left: %v", offsets)
	}
}
