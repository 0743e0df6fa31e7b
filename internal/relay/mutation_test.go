package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
)

// mutation puts a mistake into the edges of a relay; the decisions between them stay the real ones.
type mutation struct {
	store  func(relay.Store) relay.Store
	broker func(broker.Publisher) broker.Publisher
}

// plainCursor reads only what is above the highest position read, as long as it is not looking from the very start.
type plainCursor struct{ relay.Store }

func (s plainCursor) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	c, err := s.Store.Claim(ctx, l, w)
	if w.Floor != 0 {
		c.Below, c.BelowCut = nil, false
	}
	return c, err
}

// refusesAlone holds a refused row without the rest of its key.
type refusesAlone struct{ relay.Store }

func (s refusesAlone) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, _ []message.ID) error {
	return s.Store.Refuse(ctx, l, refused, nil)
}

// staysAbove sets rows free without putting the floor below them.
type staysAbove struct{ relay.Store }

func (s staysAbove) Release(ctx context.Context, l lease.Lease, keys []string, most int) ([]shard.Released, error) {
	_, err := s.Store.Release(ctx, l, keys, most)
	return nil, err
}

func (s staysAbove) SettleDue(
	ctx context.Context, l lease.Lease, ids []message.ID, places, release []string, most int,
) (shard.Settlement, []shard.Released, error) {
	settled, _, err := s.Store.SettleDue(ctx, l, ids, places, release, most)
	return settled, nil, err
}

// neverWaits takes a message for confirmed that got no answer.
type neverWaits struct{ broker.Publisher }

func (p neverWaits) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got := p.Publisher.Publish(ctx, batch)
	for i := range got {
		if got[i].Outcome == broker.Unknown {
			got[i].Outcome = broker.Confirmed
		}
	}
	return got
}

// The model must notice each of these mistakes. It tries some seeds, since chance decides how soon one shows.
func TestMutationsOfTheModelAreFound(t *testing.T) {
	t.Parallel()

	cases := map[string]mutation{
		"a plain cursor instead of the floor": {store: func(s relay.Store) relay.Store { return plainCursor{s} }},
		"a refused row held without the rest of its key": {
			store: func(s relay.Store) relay.Store { return refusesAlone{s} },
		},
		"no floor below what was set free": {store: func(s relay.Store) relay.Store { return staysAbove{s} }},
		"no wait for the confirmation": {
			broker: func(p broker.Publisher) broker.Publisher { return neverWaits{p} },
		},
	}
	for name, mutate := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 5; seed++ {
				m := &model{world: newWorld(t, 3), seed: seed, keys: 9, mutate: mutate}
				if len(m.run(3*time.Second, 4*time.Second)) > 0 {
					return
				}
			}
			t.Error("the model found nothing wrong: it would not notice the mistake in the relay either")
		})
	}
}

// frozenStore stands still with its process, before each call.
type frozenStore struct {
	relay.Store
	frozen *freezer
}

func (s *frozenStore) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	s.frozen.wait(ctx)
	return s.Store.Claim(ctx, l, w)
}

func (s *frozenStore) Fetch(
	ctx context.Context, l lease.Lease, at []message.Position, maxBytes int64,
) ([]shard.Row, bool, error) {
	s.frozen.wait(ctx)
	return s.Store.Fetch(ctx, l, at, maxBytes)
}

func (s *frozenStore) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, places []string,
) (shard.Settlement, error) {
	s.frozen.wait(ctx)
	return s.Store.Settle(ctx, l, ids, places)
}

func (s *frozenStore) SettleDue(
	ctx context.Context, l lease.Lease, ids []message.ID, places, release []string, most int,
) (shard.Settlement, []shard.Released, error) {
	s.frozen.wait(ctx)
	return s.Store.SettleDue(ctx, l, ids, places, release, most)
}

func (s *frozenStore) Hold(ctx context.Context, l lease.Lease, ids []message.ID) ([]message.Position, error) {
	s.frozen.wait(ctx)
	return s.Store.Hold(ctx, l, ids)
}

func (s *frozenStore) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error {
	s.frozen.wait(ctx)
	return s.Store.Refuse(ctx, l, refused, hold)
}

func (s *frozenStore) Release(ctx context.Context, l lease.Lease, keys []string, most int) ([]shard.Released, error) {
	s.frozen.wait(ctx)
	return s.Store.Release(ctx, l, keys, most)
}

func (s *frozenStore) Postpone(ctx context.Context, l lease.Lease, delays []shard.Delay) error {
	s.frozen.wait(ctx)
	return s.Store.Postpone(ctx, l, delays)
}

func (s *frozenStore) Due(ctx context.Context, l lease.Lease, limit, most int) ([]shard.DueGate, error) {
	s.frozen.wait(ctx)
	return s.Store.Due(ctx, l, limit, most)
}

func (s *frozenStore) Acquire(ctx context.Context, n int16, d time.Duration) (lease.Lease, bool, error) {
	s.frozen.wait(ctx)
	return s.Store.Acquire(ctx, n, d)
}

func (s *frozenStore) Renew(ctx context.Context, l lease.Lease, d time.Duration) error {
	s.frozen.wait(ctx)
	return s.Store.Renew(ctx, l, d)
}

func (s *frozenStore) GiveBack(ctx context.Context, l lease.Lease) error {
	s.frozen.wait(ctx)
	return s.Store.GiveBack(ctx, l)
}

func (s *frozenStore) Join(ctx context.Context, until time.Duration) (string, error) {
	s.frozen.wait(ctx)
	return s.Store.Join(ctx, until)
}
