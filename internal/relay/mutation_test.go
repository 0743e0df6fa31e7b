package relay_test

import (
	"context"
	"slices"
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
	broker func(client) broker.Publisher
	// replay runs before a dead letter is replayed.
	replay func(m *model, letter int64)
}

// client is a broker of several parts.
type client interface {
	broker.Publisher
	broker.Router
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
type neverWaits struct{ client }

func (p neverWaits) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got := p.client.Publish(ctx, batch)
	for i := range got {
		if got[i].Outcome == broker.Unknown {
			got[i].Outcome = broker.Confirmed
		}
	}
	return got
}

// keepsMarkers confirms markers and sends none.
type keepsMarkers struct{ client }

func (p keepsMarkers) Publish(ctx context.Context, batch []message.Message) []broker.Confirmation {
	var rest []message.Message
	for i := range batch {
		if batch[i].Type != message.SkippedType {
			rest = append(rest, batch[i])
		}
	}
	answers := p.client.Publish(ctx, rest)
	got := make([]broker.Confirmation, len(batch))
	for i := range batch {
		if batch[i].Type == message.SkippedType {
			got[i] = broker.Confirmation{Outcome: broker.Confirmed, Position: "ORDERS@0"}
			continue
		}
		got[i], answers = answers[0], answers[1:]
	}
	return got
}

// oneUnit hides that the broker has parts: what gets through one bears witness against the messages of the other.
type oneUnit struct{ broker.Publisher }

// counting changes what is written of refused messages.
type counting struct {
	relay.Store
	change func(*shard.Refusal)
}

func (s counting) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error {
	changed := slices.Clone(refused)
	for i := range changed {
		s.change(&changed[i])
	}
	return s.Store.Refuse(ctx, l, changed, hold)
}

// countsAll counts each failure, whoever got through meanwhile.
func countsAll(r *shard.Refusal) {
	if !r.Counted {
		r.Counted = true
		r.Attempts++
		r.Spent = r.Attempts >= modelAttempts
	}
}

// misplaces gives a dead letter a place behind everything that is there.
func misplaces(m *model, letter int64) {
	m.Exec(`UPDATE message_failure SET position = nextval(pg_get_serial_sequence('message_outbox', 'position'))
		WHERE failure_id = $1`, letter)
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
			broker: func(c client) broker.Publisher { return neverWaits{c} },
		},
		"no marker at the place of what was given up": {
			broker: func(c client) broker.Publisher { return keepsMarkers{c} },
		},
		"witnesses of another part of the broker": {
			broker: func(c client) broker.Publisher { return oneUnit{c} },
		},
		"failures counted without a witness": {
			store: func(s relay.Store) relay.Store { return counting{s, countsAll} },
		},
		"a budget that is never spent": {
			store: func(s relay.Store) relay.Store {
				return counting{s, func(r *shard.Refusal) { r.Spent = false }}
			},
		},
		"a replay behind the rest of its key": {replay: misplaces},
	}
	for name, mutate := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 10; seed++ {
				m := &model{world: newWorld(t, 3), seed: seed, keys: 4, mutate: mutate}
				if len(m.run(time.Duration(min(seed, 4))*2*time.Second, 4*time.Second)) > 0 {
					return
				}
			}
			t.Error("the model found nothing wrong: it would not notice the mistake in the relay either")
		})
	}
}
