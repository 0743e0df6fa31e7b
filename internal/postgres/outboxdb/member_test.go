package outboxdb

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

func TestTheTermGrowsAtEachAcquire(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, first := o.holder()
	again := o.acquire(s)
	if again.Term != first.Term+1 {
		t.Errorf("the same holder took term %d after %d", again.Term, first.Term)
	}
	if err := s.Renew(t.Context(), first, time.Minute); !errors.Is(err, lease.ErrLost) {
		t.Errorf("renewing the term before = %v, want %v", err, lease.ErrLost)
	}
	if err := s.Renew(t.Context(), again, time.Minute); err != nil {
		t.Errorf("renewing the current term: %v", err)
	}
	other := o.store()
	if _, ok, err := other.Acquire(t.Context(), 0, time.Minute); ok || err != nil {
		t.Errorf("Acquire() of a held shard = %v, %v; want no", ok, err)
	}
	o.expire()
	if l := o.acquire(other); l.Term != again.Term+1 {
		t.Errorf("another holder took term %d after %d", l.Term, again.Term)
	}
}

func TestALeaseThatNobodyTookIsRenewedAfterItsEnd(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	o.expire()
	if err := s.Renew(t.Context(), l, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := o.store().Acquire(t.Context(), 0, time.Minute); ok || err != nil {
		t.Errorf("Acquire() after the renewal = %v, %v; want no", ok, err)
	}
}

func TestALeaseGivenBackIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	if err := s.GiveBack(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	next := o.acquire(o.store())
	if err := s.GiveBack(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), next, time.Minute); err != nil && !errors.Is(err, lease.ErrLost) {
		t.Fatal(err)
	}
	if got := testkit.Value[int64](
		o.DB,
		`SELECT term FROM message_outbox_lease WHERE holder IS NOT NULL`,
	); got != next.Term {
		t.Errorf("term = %d: giving back an old term took the new one away", got)
	}
}

func TestLookTellsWhoIsThereAndWhatCanBeTaken(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	a, l := o.holder()
	b := o.store()
	if _, err := b.Join(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	live, takeable, err := b.Look(t.Context())
	if err != nil || len(live) != 2 || len(takeable) != 0 {
		t.Errorf("Look() = %d live, %v takeable, %v; want 2 and none", len(live), takeable, err)
	}
	if _, takeable, err = a.Look(t.Context()); err != nil || len(takeable) != 1 {
		t.Errorf("takeable = %v, %v; one's own shard can be taken again, in a new term", takeable, err)
	}
	o.Exec(
		`UPDATE message_outbox_member SET seen_until = clock_timestamp() - interval '1 s' WHERE holder = $1`,
		l.Holder,
	)
	if live, _, err = b.Look(t.Context()); err != nil || len(live) != 1 || live[0] != b.cfg.Holder {
		t.Errorf("live = %v, %v; want only the one that was seen", live, err)
	}
	if err := a.GiveBack(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if _, takeable, err = b.Look(t.Context()); err != nil || len(takeable) != 1 {
		t.Errorf("takeable = %v, %v; want the free shard", takeable, err)
	}
}

func TestOneRelayOwnsTheTable(t *testing.T) {
	t.Parallel()
	named := func(name, uid string) func(*Config) {
		return func(c *Config) { c.Relay, c.RelayUID = name, uid }
	}
	cases := map[string]struct {
		other   func(*Config)
		expired bool
		want    *TableInUseError
	}{
		"another process of the same relay joins": {other: named("shop/orders", "uid-1")},
		"another relay is refused": {
			other: named("shop/copy", "uid-2"),
			want:  &TableInUseError{Relay: "shop/orders"},
		},
		"a recreated relay waits for the old one's end": {
			other: named("shop/orders", "uid-2"),
			want:  &TableInUseError{Relay: "shop/orders", Recreated: true},
		},
		"a recreated relay takes over when the old is gone":  {other: named("shop/orders", "uid-2"), expired: true},
		"another relay takes over a table that nobody tends": {other: named("shop/copy", "uid-2"), expired: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.holder()
			if tc.expired {
				o.Exec(`UPDATE message_outbox_owner SET seen_until = clock_timestamp() - interval '1 s'`)
			}
			s := o.store(tc.other)
			_, err := s.Join(t.Context(), time.Minute)
			var got *TableInUseError
			errors.As(err, &got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Join() = %v (-want +got):\n%s", err, diff)
			}
			if tc.want != nil {
				condition, reason, message := s.Explain(err)
				if condition != "TableInUse" || reason != "OwnedByOther" || !strings.Contains(message, "shop/orders") {
					t.Errorf("Explain() = %s, %s, %s", condition, reason, message)
				}
			}
		})
	}
}

// The zombie of a relay that lost the table holds lease rows that no one else writes: they must end with it.
func TestTakingTheTableOverEndsTheOldRelaysLeases(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	old, l := o.holder()
	r := o.put("k1")
	o.Exec(`UPDATE message_outbox_owner SET seen_until = clock_timestamp() - interval '1 s'`)
	s := o.store(func(c *Config) { c.Relay, c.RelayUID = "shop/copy", "uid-2" })
	if _, err := s.Join(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Settle(t.Context(), l, ids(r), places(1)); !errors.Is(err, lease.ErrLost) {
		t.Errorf("the old relay's settle = %v, want %v", err, lease.ErrLost)
	}
	var inUse *TableInUseError
	if _, err := old.Join(t.Context(), time.Minute); !errors.As(err, &inUse) {
		t.Errorf("the old relay joined again: %v", err)
	}
}

func TestTheLastProcessThatLeavesFreesTheTable(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	a, _ := o.holder()
	b := o.store()
	if _, err := b.Join(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	other := o.store(func(c *Config) { c.Relay = "shop/copy" })
	var inUse *TableInUseError
	for _, leaves := range []*Store{a, b} {
		if _, err := other.Join(t.Context(), time.Minute); !errors.As(err, &inUse) {
			t.Errorf("Join() = %v while a process is there", err)
		}
		if err := leaves.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Join(t.Context(), time.Minute); err != nil {
		t.Errorf("Join() after the last left: %v", err)
	}
}

func TestTheFirstSourceStays(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	for _, offered := range []string{"shop", "other"} {
		if got, err := s.AdoptSource(t.Context(), offered); err != nil || got != "shop" {
			t.Errorf("AdoptSource(%q) = %q, %v; want shop", offered, got, err)
		}
	}
	if got, err := s.Join(t.Context(), time.Minute); err != nil || got.Source != "shop" {
		t.Errorf("Join() = %+v, %v; want source shop", got, err)
	}
}

func TestATableThatIsNotWhatItMustBeIsRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change string
		shards int
		want   string
	}{
		"other shards than the table was made with": {change: `SELECT 1`, shards: 8, want: "made with 1 shards"},
		"a server that hashes otherwise": {
			change: `UPDATE message_outbox_owner SET hash_vector = 1`,
			shards: 1,
			want:   "hashes keys otherwise",
		},
		"no owner row": {
			change: `DELETE FROM message_outbox_owner`,
			shards: 1,
			want:   "emptied by hand",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.Exec(tc.change)
			s := o.store(func(c *Config) { c.Shards = tc.shards })
			_, err := s.Join(t.Context(), time.Minute)
			condition, reason, message := s.Explain(err)
			if condition != "SchemaReady" || reason != string(postgres.ReasonSchemaInvalid) ||
				!strings.Contains(message, tc.want) {
				t.Errorf("Explain(%v) = %s, %s, %q; want it to say %q", err, condition, reason, message, tc.want)
			}
		})
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ change, want string }{
		"a fresh table passes": {change: `SELECT 1`},
		"positions given in blocks are refused": {
			change: `ALTER TABLE message_outbox ALTER position SET CACHE 20`,
			want:   "CACHE 1",
		},
		"a counter behind the rows is refused": {
			change: `UPDATE message_outbox SET position = 500`,
			want:   "setval",
		},
		"a position that is no identity is refused": {
			change: `ALTER TABLE message_outbox ALTER position DROP IDENTITY`,
			want:   "no identity",
		},
		"a missing table says that the schema is gone": {
			change: `DROP TABLE message_outbox CASCADE`,
			want:   "schema apply",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.put("k1")
			o.Exec(tc.change)
			s := o.store()
			err := s.Preflight(t.Context())
			if tc.want == "" {
				if err != nil {
					t.Errorf("Preflight() = %v", err)
				}
				return
			}
			if condition, _, message := s.Explain(
				err,
			); condition != "SchemaReady" ||
				!strings.Contains(message, tc.want) {
				t.Errorf("Explain(%v) = %s, %q; want it to say %q", err, condition, message, tc.want)
			}
		})
	}
}

func TestThePreflightsAdviceMendsTheCounter(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.put("k1")
	o.Exec(`UPDATE message_outbox SET position = 500`)
	s := o.store()
	_, _, message := s.Explain(s.Preflight(t.Context()))
	_, statement, ok := strings.Cut(message, "run: ")
	if !ok {
		t.Fatalf("message = %q, want a statement to run", message)
	}
	o.Exec(statement)
	if err := s.Preflight(t.Context()); err != nil {
		t.Errorf("Preflight() after %s = %v", statement, err)
	}
	if r := o.put("k1"); r.Position != 501 {
		t.Errorf("next position = %d, want 501", r.Position)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	valid := Config{
		Names: postgres.Names{Schema: "public", Outbox: "message_outbox"}, Relay: "a/b", Holder: uuid.New(), Shards: 8,
		QueryTimeout: time.Second,
	}
	cases := map[string]func(*Config){
		"no table":         func(c *Config) { c.Names.Outbox = "" },
		"no relay":         func(c *Config) { c.Relay = "" },
		"no holder":        func(c *Config) { c.Holder = [16]byte{} },
		"no shards":        func(c *Config) { c.Shards = 0 },
		"too many shards":  func(c *Config) { c.Shards = 65 },
		"no query timeout": func(c *Config) { c.QueryTimeout = 0 },
	}
	if _, err := New(nil, valid); err != nil {
		t.Errorf("New() = %v", err)
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := valid
			change(&c)
			if _, err := New(nil, c); !errors.Is(err, ErrInvalidConfig) {
				t.Errorf("New() = %v, want %v", err, ErrInvalidConfig)
			}
		})
	}
}
