package outboxdb

import (
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/shard"
)

// asAWorker returns a store on a session like a relay's, which plans a statement once.
func (o *outbox) asAWorker() (*postgres.Pool, *Store) {
	o.t.Helper()
	cfg := o.Config()
	cfg.MaxConnections = 1
	pool, err := postgres.Open(o.t.Context(), cfg, postgres.Options{AllowLoopback: true, KeepStatements: true})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(pool.Close)
	s, err := New(pool, Config{
		Names: o.names, Relay: "shop/orders", RelayUID: "uid-1", Holder: uuid.New(), Shards: 1, QueryTimeout: patience,
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return pool, s
}

// moveOn does what a lane does all day, with a hundred rows at most: some are refused, held, tried again and given up.
func (o *outbox) moveOn(s *Store, l lease.Lease) {
	o.t.Helper()
	ctx := o.t.Context()
	must := func(err error) {
		o.t.Helper()
		if err != nil {
			o.t.Fatal(err)
		}
	}
	claim, err := s.Claim(ctx, l, shard.Window{MaxMessages: claimed100, MaxBytes: 1 << 20, MaxBelow: claimed100})
	must(err)
	_, _, err = s.Fetch(ctx, l, []message.Position{claim.Rows[0].Position}, 1<<20)
	must(err)
	refused, held, rest := claim.Rows[:2], claim.Rows[2:4], claim.Rows[4:]
	spent := refusal(refused[1], 1)
	spent.Spent = true
	must(s.Refuse(ctx, l, []shard.Refusal{refusal(refused[0], 1), spent}, nil))
	_, err = s.PutAside(ctx, l, []shard.Delay{{Gate: held[0].OrderingKey}}, ids(held[0]))
	must(err)
	_, err = s.Hold(ctx, l, ids(held[1]))
	must(err)
	must(s.Postpone(ctx, l, []shard.Delay{{Gate: held[0].OrderingKey}}))
	gates, err := s.Due(ctx, l, claimed100, claimed100)
	must(err)
	var due []message.ID
	var keys []string
	for _, g := range gates {
		keys = append(keys, g.Gate)
		for _, h := range g.Heads {
			due = append(due, h.ID)
		}
	}
	_, err = s.Load(ctx, l, due, 1<<20)
	must(err)
	_, _, err = s.SettleDue(ctx, l, due, make([]string, len(due)), keys, claimed100)
	must(err)
	_, err = s.Settle(ctx, l, ids(rest...), make([]string, len(rest)))
	must(err)
	_, err = s.Waiting(ctx, []int16{0}, []message.Position{0})
	must(err)
}

// read is how many rows of the outbox this session has read, by whatever way.
func (o *outbox) read(pool *postgres.Pool) (rows int) {
	o.t.Helper()
	if _, err := pool.Exec(o.t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		o.t.Fatal(err)
	}
	err := pool.QueryRow(o.t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
		WHERE schemaname = $1 AND relname = 'message_outbox'`, o.Schema).Scan(&rows)
	if err != nil {
		o.t.Fatal(err)
	}
	return rows
}

// grow writes many rows without anybody counting them.
func (o *outbox) grow(key string, rows int) {
	o.t.Helper()
	o.Exec(
		`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload, occurred_at)
		SELECT gen_random_uuid(), 't', 'shop', $2 || i, 1, '{}', now() FROM generate_series(1, $1) i`,
		rows,
		key,
	)
}

// A relay plans its statements while its outbox is empty, or small and counted. The broker is away for a night: the same
// plans must serve a table that has grown without anybody having counted its rows, and read no more than what they move.
func TestAPlanMadeOnASmallOutboxServesAFullOne(t *testing.T) {
	t.Parallel()
	for _, small := range []int{0, 1, 10, 100, 1000, 5000} {
		t.Run(strconv.Itoa(small), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.Exec(`ALTER TABLE message_outbox SET (autovacuum_enabled = off)`)
			pool, s := o.asAWorker()
			if _, err := s.Join(t.Context(), patience); err != nil {
				t.Fatal(err)
			}
			l := o.acquire(s)
			if small > 0 {
				o.grow("few", small)
				o.Exec(`ANALYZE message_outbox`)
			}
			for range 10 { // after some a plan is kept for whatever comes
				for _, key := range []string{"a", "b", "c", "c", "d", "e"} {
					o.put(key)
				}
				o.moveOn(s, l)
			}
			o.grow("flows", rowsBehind)
			before := o.read(pool)
			o.moveOn(s, l)
			// A row is read when it is claimed and when it is settled, and some are looked at on the way.
			if got := o.read(pool) - before; got > 4*claimed100 {
				t.Errorf("%d rows were read to move %d", got, claimed100)
			}
		})
	}
}
