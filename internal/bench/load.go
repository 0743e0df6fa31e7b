package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/relay"
)

const (
	// writers commit side by side. Each has keys of its own, so that the order of a key is that of its commits.
	writers = 8
	// commitsPerSecond are made at most, all writers together: a higher rate has more rows in a transaction.
	commitsPerSecond = 500
	// warmUp is what a relay under load is given before it is measured.
	warmUp = 3 * time.Second
	// lookEvery is how often it is looked whether a relay has got there.
	lookEvery = 5 * time.Millisecond
	// catchUp bounds how long a relay may take for what was written, once nothing more is.
	catchUp = 5 * time.Minute
)

// loaded is a relay that runs on the table, while messages are written.
type loaded struct {
	*member
	t    *table
	seen *observer

	stop context.CancelFunc
	done chan error
	// deaf gets how what listens for commits ended; nil where nothing does.
	deaf chan error
}

// startLoaded makes the tables anew, starts a relay on them and waits until it holds all shards.
func (t *table) startLoaded(ctx context.Context) (*loaded, error) {
	if d := t.cfg.Destination; d != nil {
		if err := d.Empty(ctx); err != nil {
			return nil, fmt.Errorf("empty %s: %w", d.Name, err)
		}
	}
	if err := t.fill(ctx); err != nil {
		return nil, err
	}
	l := &loaded{t: t, seen: newObserver(t.publisher()), done: make(chan error, 1)}
	var err error
	if l.member, err = t.newMember(l.seen, relay.Run); err != nil {
		return nil, err
	}
	ctx, l.stop = context.WithCancel(ctx)
	go func() { l.done <- l.Run(ctx) }()
	err = awaitShards(ctx, l.Relay, t.shards)
	if err == nil && t.notify {
		err = l.listen(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

// listen has the database tell the relay of commits, and returns once it does.
func (l *loaded) listen(ctx context.Context) error {
	heard := make(chan struct{}, 1)
	l.deaf = make(chan error, 1)
	go func() {
		l.deaf <- postgres.Listen(ctx, l.t.plain, l.t.names.Outbox, l.t.names.Schema, func() {
			select {
			case heard <- struct{}{}:
			default:
			}
		}, l.Committed)
	}()
	select {
	case <-heard:
		return nil
	case err := <-l.deaf:
		l.deaf = nil
		return err
	}
}

// end stops the relay.
func (l *loaded) end() error {
	l.stop()
	err := <-l.done
	if l.deaf != nil {
		if heard := <-l.deaf; !errors.Is(heard, context.Canceled) {
			err = errors.Join(err, heard)
		}
	}
	return err
}

// pace is how fast is written: all writers together commit that many rows in a transaction each, every so often; 0 is as
// often as they can.
type pace struct {
	rows  int
	every time.Duration
}

// flatOut is as fast as the writers can, as far as rows of a transaction go on making them faster.
func flatOut() pace { return pace{rows: 100} }

// paceOf is the pace of a rate, in rows a second.
func paceOf(rate int) pace {
	rows := max(1, rate/commitsPerSecond)
	return pace{rows, time.Duration(float64(writers*rows) / float64(rate) * float64(time.Second))}
}

// write writes rows for some time, and returns how many there were and how long that took. Where the database is slower
// than the pace, less is written.
func (l *loaded) write(ctx context.Context, p pace, duration time.Duration) (rows int, took time.Duration, err error) {
	began := time.Now()
	var total atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for i := range writers {
		all.Go(func() error {
			// Side by side, not all at once.
			next := began.Add(p.every * time.Duration(i) / writers)
			w := writer{t: l.t, number: i, from: l.seen.wrote(i)}
			for ; next.Before(began.Add(duration)); next = next.Add(p.every) {
				if err := pause(ctx, time.Until(next)); err != nil {
					return err
				}
				if err := w.commit(ctx, p.rows); err != nil {
					return err
				}
				total.Add(int64(p.rows))
				if time.Since(began) > duration {
					break // the database is slower than the rate
				}
			}
			l.seen.note(i, w.from)
			return nil
		})
	}
	err = all.Wait()
	return int(total.Load()), time.Since(began), err
}

// writer writes the messages of its keys, one transaction after the other.
type writer struct {
	t      *table
	number int
	from   int // messages that it has written
}

// A row's time is the writer's, before its transaction begins to be sent: what follows is counted as latency.
const writeSQL = `
INSERT INTO {outbox} (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
SELECT u.id, 'order.paid', 'bench', u.key, u.version, convert_to($4, 'UTF8'), $5
FROM unnest($1::uuid[], $2::text[], $3::bigint[]) u(id, key, version)`

func (w *writer) commit(ctx context.Context, rows int) error {
	ids, keys, versions := make([]uuid.UUID, rows), make([]string, rows), make([]int64, rows)
	own := max(1, w.t.cfg.Keys/writers)
	for i := range rows {
		ids[i] = uuid.Must(uuid.NewV7())
		keys[i] = fmt.Sprintf("writer-%d-%d", w.number, w.from%own)
		versions[i] = int64(w.from/own + 1)
		w.from++
	}
	payload := `{"note":"` + strings.Repeat("x", w.t.cfg.PayloadBytes-minPayload) + `"}`
	if _, err := w.t.plain.Exec(ctx, w.t.names.SQL(writeSQL), ids, keys, versions, payload, time.Now()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// observer passes messages on and notes what becomes of them.
type observer struct {
	next broker.Publisher

	mu sync.Mutex
	// written are the messages of each writer so far, by the writer's number.
	written [writers]int
	// latencies are the times from commit to confirmation; versions the last one of each key.
	latencies  []time.Duration
	versions   map[string]int64
	confirmed  int
	disordered int
}

func newObserver(next broker.Publisher) *observer {
	return &observer{next: next, versions: make(map[string]int64)}
}

// Publish implements broker.Publisher. The last answer counts for all messages of a batch.
func (o *observer) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got := o.next.Publish(ctx, batch)
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range got {
		m := &batch[i]
		if got[i].Outcome != broker.Confirmed {
			continue
		}
		o.confirmed++
		o.latencies = append(o.latencies, now.Sub(m.OccurredAt))
		if m.AggregateVersion <= o.versions[m.OrderingKey] {
			o.disordered++
		}
		o.versions[m.OrderingKey] = m.AggregateVersion
	}
	return got
}

// all is how many messages were written.
func (o *observer) all() (sum int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.written {
		sum += n
	}
	return sum
}

func (o *observer) wrote(writer int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written[writer]
}

func (o *observer) note(writer, written int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written[writer] = written
}

// forget forgets the latencies so far, and returns them.
func (o *observer) forget() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	latencies := o.latencies
	o.latencies = nil
	return latencies
}

// counts returns how many messages were confirmed, and how many of them behind a later one of their key.
func (o *observer) counts() (confirmed, disordered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.confirmed, o.disordered
}

// await waits until a count reaches what it should be.
func await(ctx context.Context, count func() int, want int) error {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		got := count()
		if got >= want {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the relay got to %d of %d: %w", got, want, context.Cause(ctx))
		}
	}
}

// awaitConfirmed waits until so many messages are confirmed.
func (l *loaded) awaitConfirmed(ctx context.Context, messages int) error {
	return await(ctx, func() int { confirmed, _ := l.seen.counts(); return confirmed }, messages)
}

// awaitShards waits until a relay holds so many shards.
func awaitShards(ctx context.Context, r *relay.Relay, shards int) error {
	return await(ctx, func() int { report, _ := r.Report(ctx); return len(report.HeldShards) }, shards)
}
