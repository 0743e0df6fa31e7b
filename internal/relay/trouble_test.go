package relay_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
)

// troubledStore stands still with its process before each call, and now and then a call fails: it never got there, or
// its answer was lost.
type troubledStore struct {
	relay.Store
	frozen *freezer
	quiet  *atomic.Bool

	mu     sync.Mutex
	random *rand.Rand
}

func (s *troubledStore) roll() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.Float64()
}

func (s *troubledStore) around(ctx context.Context, call func() error) error {
	return s.oftenAround(ctx, 0.02, call)
}

func (s *troubledStore) oftenAround(ctx context.Context, chance float64, call func() error) error {
	s.frozen.wait(ctx)
	x := s.roll()
	if s.quiet.Load() || x > chance {
		return call()
	}
	if x < chance/2 {
		return errLostAnswer
	}
	if err := call(); err != nil {
		return err
	}
	return errLostAnswer
}

// Join never knows the table's source: each process asks for it with its first messages.
func (s *troubledStore) Join(ctx context.Context, until time.Duration) (joined shard.Joined, err error) {
	err = s.around(ctx, func() (err error) {
		joined, err = s.Store.Join(ctx, until)
		return err
	})
	joined.Source = ""
	return joined, err
}

func (s *troubledStore) Claim(ctx context.Context, l lease.Lease, w shard.Window) (c shard.Claim, err error) {
	err = s.around(ctx, func() (err error) {
		c, err = s.Store.Claim(ctx, l, w)
		return err
	})
	return c, err
}

func (s *troubledStore) Fetch(
	ctx context.Context, l lease.Lease, at []message.Position, maxBytes int64,
) (rows []shard.Row, cut bool, err error) {
	err = s.around(ctx, func() (err error) {
		rows, cut, err = s.Store.Fetch(ctx, l, at, maxBytes)
		return err
	})
	return rows, cut, err
}

func (s *troubledStore) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, places []string,
) (got shard.Settlement, err error) {
	err = s.around(ctx, func() (err error) {
		got, err = s.Store.Settle(ctx, l, ids, places)
		return err
	})
	return got, err
}

func (s *troubledStore) SettleDue(
	ctx context.Context, l lease.Lease, ids []message.ID, places, release []string, most int,
) (got shard.Settlement, freed []shard.Released, err error) {
	err = s.around(ctx, func() (err error) {
		got, freed, err = s.Store.SettleDue(ctx, l, ids, places, release, most)
		return err
	})
	return got, freed, err
}

func (s *troubledStore) Hold(
	ctx context.Context, l lease.Lease, ids []message.ID,
) (held shard.Held, err error) {
	err = s.around(ctx, func() (err error) {
		held, err = s.Store.Hold(ctx, l, ids)
		return err
	})
	return held, err
}

func (s *troubledStore) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error {
	return s.around(ctx, func() error { return s.Store.Refuse(ctx, l, refused, hold) })
}

func (s *troubledStore) PutAside(
	ctx context.Context, l lease.Lease, delays []shard.Delay, hold []message.ID,
) (xid uint64, err error) {
	err = s.around(ctx, func() (err error) {
		xid, err = s.Store.PutAside(ctx, l, delays, hold)
		return err
	})
	return xid, err
}

func (s *troubledStore) Release(
	ctx context.Context, l lease.Lease, keys []string, most int,
) (freed []shard.Released, err error) {
	err = s.around(ctx, func() (err error) {
		freed, err = s.Store.Release(ctx, l, keys, most)
		return err
	})
	return freed, err
}

func (s *troubledStore) Postpone(ctx context.Context, l lease.Lease, delays []shard.Delay) error {
	return s.around(ctx, func() error { return s.Store.Postpone(ctx, l, delays) })
}

func (s *troubledStore) Due(ctx context.Context, l lease.Lease, limit, most int) (gates []shard.DueGate, err error) {
	err = s.around(ctx, func() (err error) {
		gates, err = s.Store.Due(ctx, l, limit, most)
		return err
	})
	return gates, err
}

func (s *troubledStore) Load(
	ctx context.Context, l lease.Lease, ids []message.ID, maxBytes int64,
) (rows []shard.Row, err error) {
	err = s.around(ctx, func() (err error) {
		rows, err = s.Store.Load(ctx, l, ids, maxBytes)
		return err
	})
	return rows, err
}

func (s *troubledStore) Acquire(ctx context.Context, n int16, d time.Duration) (l lease.Lease, ok bool, err error) {
	err = s.around(ctx, func() (err error) {
		l, ok, err = s.Store.Acquire(ctx, n, d)
		return err
	})
	return l, ok, err
}

func (s *troubledStore) Renew(ctx context.Context, l lease.Lease, d time.Duration) error {
	return s.around(ctx, func() error { return s.Store.Renew(ctx, l, d) })
}

func (s *troubledStore) GiveBack(ctx context.Context, l lease.Lease) error {
	return s.around(ctx, func() error { return s.Store.GiveBack(ctx, l) })
}

// AdoptSource fails often, since a process asks only until it has an answer, and after a while, so that the next batch
// is read meanwhile.
func (s *troubledStore) AdoptSource(ctx context.Context, offered string) (source string, err error) {
	<-time.After(time.Duration(10*s.roll()) * time.Millisecond)
	err = s.oftenAround(ctx, 0.8, func() (err error) {
		source, err = s.Store.AdoptSource(ctx, offered)
		return err
	})
	return source, err
}
