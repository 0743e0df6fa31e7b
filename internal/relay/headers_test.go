package relay_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// measured is a store that knows how much each of its claims brought of headers.
type measured struct {
	*hooks
	mu    sync.Mutex
	bytes []int // of the claims that brought any
}

func (m *measured) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	got, err := m.hooks.Claim(ctx, l, w)
	sum := 0
	for i := range got.Rows {
		for name, value := range got.Rows[i].Headers {
			sum += len(name) + len(value)
		}
	}
	if sum > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.bytes = append(m.bytes, sum)
	}
	return got, err
}

func (m *measured) parts() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]int(nil), m.bytes...)
}

// Headers were counted for nothing: a lane held as many of them as a batch has rows, however large they were.
func TestRowsOfHeadersAloneAreReadInParts(t *testing.T) {
	t.Parallel()
	const rows, size, bound = 500, 32 << 10, 1 << 20
	w := newWorld(t, 1)
	w.put("k", rows)
	w.Exec(`UPDATE message_outbox SET payload = '', headers = jsonb_build_object('a',
		(SELECT string_agg(md5(i::text), '') FROM generate_series(1, $1::int / 32) i))`, size)
	store, beat := &measured{hooks: &hooks{}}, &steps{}
	broker := gate{calls: make(chan struct{}, 1), open: make(chan struct{})}
	p := w.start(options{
		config: func(c *relay.Config) {
			c.Batch.MaxMessages, c.Batch.MaxBytes, c.Batch.PublishTimeout = rows, bound, 8*time.Second
			c.LeaseDuration, c.QueryTimeout = time.Minute, time.Minute
		},
		publisher: broker, watchdog: beat,
		wrap: func(s relay.Store) relay.Store { store.hooks.wrap(s); return store },
	})
	<-broker.calls
	beat.awaitLooks(p)
	if got := store.parts(); len(got) != 1 {
		t.Errorf("parts of %d bytes were read while a full batch is on its way", got)
	}
	close(broker.open)
	w.awaitEmpty()
	sum := 0
	for _, part := range store.parts() {
		if sum += part; part > bound+size {
			t.Errorf("%d bytes of headers were read at once, want about %d", part, bound)
		}
	}
	if want := rows * (size + len("a")); sum != want {
		t.Errorf("%d bytes of headers were read, want %d: each row once", sum, want)
	}
}

// oneAttempt is a budget that is spent at once.
func oneAttempt(c *relay.Config) {
	c.Budget = retry.Budget{MaxAttempts: 1, MaxElapsed: time.Hour}
	c.QueryTimeout, c.LeaseDuration = time.Minute, time.Minute
}

// huge writes a row of key "huge" among others, changes it, and waits until it is a dead letter and the others got
// through. It fails when the relay has allocated more than a small part of what the row holds.
func (w *world) huge(change string, bytes int) outboxdb.Letter {
	w.t.Helper()
	w.put("a", 2)
	id := w.put("huge", 1)[0].ID
	w.put("b", 2)
	w.Exec(change, bytes, [16]byte(id))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.start(options{config: oneAttempt})
	w.awaitDead(1)
	w.awaitEmpty()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(bytes)/4 {
		w.t.Errorf("%d bytes were allocated for a row of %d that cannot be sent", grown, bytes)
	}
	w.inOrder("a", 2)
	w.inOrder("b", 2)
	if got := w.broker.versions("huge"); len(got) != 0 {
		w.t.Errorf("the broker was given %v of the huge row's key", got)
	}
	letters, err := w.desk().List(w.t.Context(), outboxdb.Filter{Limit: 10})
	if err != nil || len(letters) != 1 || letters[0].Reason != "TooLarge" || letters[0].EventID != id.String() {
		w.t.Fatalf("dead letters = %+v, %v, want the one that is too large", letters, err)
	}
	return letters[0]
}

const megabytes100 = 100 << 20

// G8: one row with headers that no memory holds stopped every key of its shard. (Beside other tests nobody could tell
// whose memory it is: these are not parallel.)
func TestG8HugeHeadersAreTheFailureOfTheirRow(t *testing.T) { //nolint:paralleltest // see above
	w := newWorld(t, 1)
	w.Exec(`ALTER TABLE message_outbox ALTER COLUMN headers SET STORAGE EXTERNAL`)
	w.huge(`UPDATE message_outbox SET headers = jsonb_build_object('a', repeat('x', $1)) WHERE event_id = $2`,
		megabytes100)
	if kept := testkit.Value[int64](w.DB, `SELECT octet_length(raw_headers)::bigint FROM message_failure`); kept <
		megabytes100 {
		t.Errorf("%d bytes of headers are kept, want all", kept)
	}
}

// A team's row stays where it is, and its dead letter is without the headers.
func TestG8HugeHeadersOfATeamsTableAreTheFailureOfTheirRow(t *testing.T) { //nolint:paralleltest // as above
	for _, kind := range []string{"jsonb", "json"} { //nolint:paralleltest // as above
		t.Run(kind, func(t *testing.T) {
			table := testkit.ClassicTable()
			table.DDL += `ALTER TABLE outbox_event ADD COLUMN headers ` + kind + `;
				ALTER TABLE outbox_event ALTER COLUMN headers SET STORAGE EXTERNAL;`
			table.Change = func(c *config.Columns) { c.Headers = "headers" }
			w := newTeamWorld(t, table, 1)
			w.huge(`UPDATE outbox_event SET headers = `+kind+`_build_object('a', repeat('x', $1)) WHERE event_id = $2`,
				megabytes100)
			if !testkit.Value[bool](w.DB, `SELECT bool_and(raw_headers IS NULL) FROM message_failure`) {
				t.Error("the dead letter has headers that the row above it kept")
			}
		})
	}
}

// Columns of a team's table may hold texts of any length.
func TestG8AHugeTextOfATeamsTableIsTheFailureOfItsRow(t *testing.T) { //nolint:paralleltest // as above
	w := newTeamWorld(t, testkit.ClassicTable(), 1)
	l := w.huge(`UPDATE outbox_event SET topic = repeat('x', $1) WHERE event_id = $2`, megabytes100)
	if n := len(l.Destination); n != mapped.TextBound {
		t.Errorf("the dead letter has %d bytes of its destination, want the beginning", n)
	}
}
