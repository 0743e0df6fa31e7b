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
			for seed := uint64(1); seed <= 20; seed++ { // on a busy machine less happens in a run
				m := &model{world: newWorld(t, 3), seed: seed, keys: 4, mutate: mutate}
				if len(m.run(3*time.Second, 4*time.Second)) > 0 {
					return
				}
			}
			t.Error("the model found nothing wrong: it would not notice the mistake in the relay either")
		})
	}
}
