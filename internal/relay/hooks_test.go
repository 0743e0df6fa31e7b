package relay_test

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/shard"
)

// hooks are what a test does around the calls of a store. A hook gets the real call; nil leaves a call as it is.
type hooks struct {
	relay.Store

	// postponed counts keys.
	claims, looks, postponed atomic.Int64

	mu        sync.Mutex
	settle    func(call func() (shard.Settlement, error)) (shard.Settlement, error)
	settleDue func(call func() error) error
	release   func(call func() error) error
	renew     func(call func() error) error
	refuse    func(call func() error) error
	claim     func() error
	join      func(call func() error) error
	adopt     func(call func() error) error
}

func (h *hooks) wrap(s relay.Store) relay.Store {
	h.Store = s
	return h
}

// set changes hooks while the relay runs.
func (h *hooks) set(change func(*hooks)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func around(h *hooks, hook func(*hooks) func(func() error) error, call func() error) error {
	h.mu.Lock()
	f := hook(h)
	h.mu.Unlock()
	if f == nil {
		return call()
	}
	return f(call)
}

func (h *hooks) Claim(ctx context.Context, l lease.Lease, w shard.Window) (shard.Claim, error) {
	h.claims.Add(1)
	h.mu.Lock()
	f := h.claim
	h.mu.Unlock()
	if f != nil {
		if err := f(); err != nil {
			return shard.Claim{}, err
		}
	}
	return h.Store.Claim(ctx, l, w)
}

func (h *hooks) Waiting(ctx context.Context, shards []int16, floors []message.Position) (shard.Work, error) {
	h.looks.Add(1)
	return h.Store.Waiting(ctx, shards, floors)
}

func (h *hooks) Settle(
	ctx context.Context, l lease.Lease, ids []message.ID, places []string,
) (shard.Settlement, error) {
	h.mu.Lock()
	f := h.settle
	h.mu.Unlock()
	call := func() (shard.Settlement, error) { return h.Store.Settle(ctx, l, ids, places) }
	if f == nil {
		return call()
	}
	return f(call)
}

func (h *hooks) SettleDue(
	ctx context.Context, l lease.Lease, ids []message.ID, places, release []string, most int,
) (settled shard.Settlement, released []shard.Released, err error) {
	err = around(h, func(h *hooks) func(func() error) error { return h.settleDue }, func() (err error) {
		settled, released, err = h.Store.SettleDue(ctx, l, ids, places, release, most)
		return err
	})
	return settled, released, err
}

func (h *hooks) Release(
	ctx context.Context, l lease.Lease, keys []string, most int,
) (released []shard.Released, err error) {
	err = around(h, func(h *hooks) func(func() error) error { return h.release }, func() (err error) {
		released, err = h.Store.Release(ctx, l, keys, most)
		return err
	})
	return released, err
}

func (h *hooks) Refuse(ctx context.Context, l lease.Lease, refused []shard.Refusal, hold []message.ID) error {
	return around(h, func(h *hooks) func(func() error) error { return h.refuse },
		func() error { return h.Store.Refuse(ctx, l, refused, hold) })
}

func (h *hooks) Join(ctx context.Context, until time.Duration) (joined shard.Joined, err error) {
	err = around(h, func(h *hooks) func(func() error) error { return h.join }, func() (err error) {
		joined, err = h.Store.Join(ctx, until)
		return err
	})
	return joined, err
}

func (h *hooks) AdoptSource(ctx context.Context, offered string) (source string, err error) {
	err = around(h, func(h *hooks) func(func() error) error { return h.adopt }, func() (err error) {
		source, err = h.Store.AdoptSource(ctx, offered)
		return err
	})
	return source, err
}

func (h *hooks) Postpone(ctx context.Context, l lease.Lease, delays []shard.Delay) error {
	h.postponed.Add(int64(len(delays)))
	return h.Store.Postpone(ctx, l, delays)
}

func (h *hooks) Renew(ctx context.Context, l lease.Lease, d time.Duration) error {
	return around(h, func(h *hooks) func(func() error) error { return h.renew },
		func() error { return h.Store.Renew(ctx, l, d) })
}
