package relay

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/message"
)

// idlers are the lanes that have nothing to do. One cheap query looks for work for all of them.
type idlers struct {
	mu     sync.Mutex
	parked map[int16]parked
	// arrived tells the look that a lane has just become idle: what was busy a moment ago is looked at soon.
	arrived chan struct{}
}

type parked struct {
	floor message.Position
	// wake is told whether the look was from the very start.
	wake chan<- bool
}

func newIdlers() *idlers {
	return &idlers{parked: make(map[int16]parked), arrived: make(chan struct{}, 1)}
}

// park hands a lane over that has nothing in hand. wake must have room for one.
func (i *idlers) park(shard int16, floor message.Position, wake chan<- bool) {
	i.mu.Lock()
	i.parked[shard] = parked{floor: floor, wake: wake}
	i.mu.Unlock()
	select {
	case i.arrived <- struct{}{}:
	default:
	}
}

// unpark takes a lane back that goes on or ends by itself.
func (i *idlers) unpark(shard int16) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.parked, shard)
}

// list returns the idle shards with their floors, or with 0 for a look from the very start.
func (i *idlers) list(fromStart bool) (shards []int16, floors []message.Position) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for s, p := range i.parked {
		shards = append(shards, s)
		if fromStart {
			p.floor = 0
		}
		floors = append(floors, p.floor)
	}
	return shards, floors
}

// wake wakes the lanes of shards that have something to do.
func (i *idlers) wake(shards []int16, fromStart bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range shards {
		p, ok := i.parked[s]
		if !ok {
			continue
		}
		delete(i.parked, s)
		select {
		case p.wake <- fromStart:
		default: // it is awake already
		}
	}
}

// lookForWork wakes idle lanes until ctx ends. While nothing is found it looks less and less often, down to a fifth.
func (r *Relay) lookForWork(ctx context.Context) {
	pause := r.config().Batch.PollInterval
	last, fromStartAt := r.now(), r.now()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		r.step(loopLook, pause)
		select {
		case <-ctx.Done():
			r.watchdog.Done(loopLook)
			return
		case <-r.idle.arrived:
			pause = r.config().Batch.PollInterval
			timer.Reset(max(0, last.Add(pause).Sub(r.now())))
			continue
		case <-timer.C:
		}
		found := false
		last = r.now()
		fromStart := !last.Before(fromStartAt)
		if shards, floors := r.idle.list(fromStart); len(shards) > 0 {
			found = r.look(ctx, shards, floors, fromStart)
			if fromStart {
				fromStartAt = nextRescan(last, r.now())
			}
		}
		pause = nextPause(pause, r.config().Batch.PollInterval, found)
		timer.Reset(pause)
	}
}

// nextPause is the pause before the next look.
func nextPause(pause, least time.Duration, found bool) time.Duration {
	if found {
		return least
	}
	return min(max(pause+least, least), idleFactor*least)
}

// nextRescan is when to read from the very start again, after one that ran from began to ended.
func nextRescan(began, ended time.Time) time.Time {
	return ended.Add(max(rescanEvery, 9*ended.Sub(began)))
}

func (r *Relay) look(ctx context.Context, shards []int16, floors []message.Position, fromStart bool) bool {
	found, err := r.store.Waiting(ctx, shards, floors)
	if err != nil {
		r.storeFailed(ctx, loopLook, err)
		return false
	}
	r.health.succeeded(loopLook)
	r.idle.wake(found, fromStart)
	return len(found) > 0
}
