package kafka

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// place names a partition.
type place struct {
	topic     string
	partition int32
}

func (p place) String() string { return p.topic + "/" + strconv.Itoa(int(p.partition)) }

// unknownOffset is where nothing is known of a partition yet.
const unknownOffset = -1

// partition is what is held of one partition while it is ours. It decides and asks nobody; the receiver's lock guards it.
type partition struct {
	place

	// held are the records from the first unfinished one on, by offset. The finished ones among them wait for it.
	held []*delivery
	// ready are those that were never handed out, or were given back, by offset.
	ready []*delivery
	// out counts the records that are handed out and not settled, outBytes their size.
	out, outBytes int
	// next is the offset behind the last record that came, or where the group has read to before the first.
	next int64
	// committed is what the group has kept for us.
	committed int64
	// epoch is the leader's at the last record that is finished with all before it.
	epoch int32
	// due is when records may be handed out again after a release.
	due time.Time
	// leaving says that the partition goes to another process.
	leaving bool
	// err is why nothing comes of it; nil where something may.
	err *broker.Error
}

func newPartition(at place) *partition {
	return &partition{place: at, next: unknownOffset, committed: unknownOffset, epoch: -1}
}

// add takes a record that has come. The transaction markers of producers are finished at once.
func (p *partition) add(r *Receiver, record *kgo.Record) {
	d := &delivery{
		r: r, of: p, record: record, offset: record.Offset, epoch: record.LeaderEpoch, size: sizeOf(record),
	}
	p.next = record.Offset + 1
	p.held = append(p.held, d)
	if record.Attrs.IsControl() {
		d.finish()
		p.advance()
		return
	}
	p.ready = append(p.ready, d)
}

// advance forgets the records that are finished with all before them.
func (p *partition) advance() {
	n := 0
	for n < len(p.held) && p.held[n].stage == finished {
		p.epoch = p.held[n].epoch
		n++
	}
	clear(p.held[:n])
	p.held = p.held[n:]
}

// position is the offset up to which everything is finished, and so what the group may keep; unknownOffset where that is
// not known.
func (p *partition) position() int64 {
	if len(p.held) > 0 {
		return p.held[0].offset
	}
	return p.next
}

// blocked says whether a release keeps the partition's records from being handed out.
func (p *partition) blocked(now time.Time) bool { return len(p.ready) > 0 && now.Before(p.due) }

// behind is the number of offsets from the first unfinished record to the end of what has come.
func (p *partition) behind() int64 {
	if len(p.held) == 0 {
		return 0
	}
	return p.next - p.held[0].offset
}

// giveBack puts a record back to where it is handed out again, in its order.
func (p *partition) giveBack(d *delivery) {
	at, _ := slices.BinarySearchFunc(p.ready, d.offset, func(other *delivery, offset int64) int {
		return int(min(max(other.offset-offset, -1), 1))
	})
	d.leave(inHand)
	p.ready = slices.Insert(p.ready, at, d)
}

// oldest is when the broker got the first unfinished record.
func (p *partition) oldest() (time.Time, bool) {
	if len(p.held) == 0 || p.held[0].record == nil {
		return time.Time{}, false
	}
	return p.held[0].record.Timestamp, true
}

// stage is where a record is with us.
type stage uint8

const (
	inHand    stage = iota // to be handed out
	handedOut              // with the consumer
	finished               // acknowledged
)

// delivery is one record in our hands.
type delivery struct {
	r          *Receiver
	of         *partition
	record     *kgo.Record // until it is finished
	offset     int64
	epoch      int32
	size       int
	stage      stage
	deliveries int
}

// leave notes that the record is no longer handed out.
func (d *delivery) leave(to stage) {
	if d.stage == handedOut {
		d.of.out--
		d.of.outBytes -= d.size
	}
	d.stage = to
}

func (d *delivery) finish() {
	d.leave(finished)
	d.record = nil
}

// Ack implements broker.Acknowledger. The group's offset follows soon; what it misses comes again, and the inbox knows it.
func (d *delivery) Ack(context.Context) error {
	d.r.settle(d, func() {
		d.finish()
		d.of.advance()
	})
	return nil
}

// Release implements broker.Acknowledger. Until the pause is over, nothing of the partition is handed out: Kafka's order
// is the partition's. What of it is handed out already may be settled meanwhile.
func (d *delivery) Release(_ context.Context, pause time.Duration) error {
	d.r.settle(d, func() {
		d.of.giveBack(d)
		if until := d.r.now().Add(pause); pause > 0 && until.After(d.of.due) {
			d.of.due = until
		}
	})
	return nil
}

// InProgress implements broker.Acknowledger. A partition is ours for as long as the process lives.
func (*delivery) InProgress(context.Context) error { return nil }

// handOut returns the record for the consumer.
func (d *delivery) handOut() broker.Delivery {
	d.stage = handedOut
	d.of.out++
	d.of.outBytes += d.size
	d.deliveries++
	return broker.Delivery{
		Acknowledger: d, Record: recordOf(d.record), Position: position(d.record),
		Sequence: uint64(max(d.offset, 0)), Deliveries: d.deliveries,
	}
}

// recordOf returns a record in our words.
func recordOf(r *kgo.Record) message.Record {
	rec := message.Record{Key: r.Key, Body: r.Value}
	if len(r.Headers) > 0 {
		rec.Headers = make([]message.Header, len(r.Headers))
		for i, h := range r.Headers {
			rec.Headers[i] = message.Header{Name: h.Key, Value: string(h.Value)}
		}
	}
	return rec
}

func sizeOf(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}
