package relay

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// idlers are the lanes that have nothing to do. One cheap query looks for work for all of them.
type idlers struct {
	// commits counts what Committed told of.
	commits atomic.Uint64
	// rung asks for a look soon.
	rung chan struct{}

	mu     sync.Mutex
	parked map[int16]parked
	// arrived tells the look that a lane has just become idle: what was busy a moment ago is looked at soon.
	arrived chan struct{}
}

// parked is an idle lane. Its floor is worth something on the server that it read from: another one, restored to an older
// point or lacking the last commits, may give out positions again. It is also worth something only while open run.
type parked struct {
	floor  message.Position
	server time.Time
	open   []uint64
	// wake is told whether the look was from the very start.
	wake chan<- bool
}

func newIdlers() *idlers {
	return &idlers{
		parked: make(map[int16]parked), arrived: make(chan struct{}, 1), rung: make(chan struct{}, 1),
	}
}

// park hands a lane over that has nothing in hand. Its wake must have room for one. commits are those that were told of
// before its last read began: what was told of since, that read may not have seen.
func (i *idlers) park(shard int16, lane parked, commits uint64) {
	i.mu.Lock()
	i.parked[shard] = lane
	i.mu.Unlock()
	if i.commits.Load() != commits {
		i.ring()
	}
	i.hurry()
}

// hurry has the next look come a poll interval after the last one, as that is now.
func (i *idlers) hurry() {
	select {
	case i.arrived <- struct{}{}:
	default:
	}
}

// ring asks for a look soon.
func (i *idlers) ring() {
	select {
	case i.rung <- struct{}{}:
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

// wake wakes the lanes that have something to do, as a look shows, and those whose floor is worth nothing any more. It says
// whether there are any.
func (i *idlers) wake(work shard.Work, fromStart bool) (woken bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for s, p := range i.parked {
		moved := !p.server.Equal(work.Server)
		if !moved && !slices.Contains(work.Shards, s) && allRun(p.open, work.Running) {
			continue
		}
		woken = true
		delete(i.parked, s)
		select {
		case p.wake <- fromStart || moved:
		default: // it is awake already
		}
	}
	return woken
}

// Committed says that rows were committed: idle lanes look soon. It may be called as often as rows are.
func (r *Relay) Committed() {
	r.idle.commits.Add(1)
	r.idle.ring()
}

// lookForWork wakes idle lanes until ctx ends. While nothing is found it looks less and less often, down to a fifth.
func (r *Relay) lookForWork(ctx context.Context) {
	pause := r.config().Batch.PollInterval
	last, fromStartAt := r.now(), r.now()
	rung := false
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		r.step(loopLook, pause)
		now := false
		select {
		case <-ctx.Done():
			r.watchdog.Done(loopLook)
			return
		case <-r.idle.arrived:
			pause = r.config().Batch.PollInterval
		case <-r.idle.rung:
			rung = true
		case <-timer.C:
			now = true
		}
		if !now {
			timer.Reset(max(0, last.Add(untilLook(pause, rung)).Sub(r.now())))
			continue
		}
		found := false
		rung = false
		last = r.now()
		fromStart := !last.Before(fromStartAt)
		if shards, floors := r.idle.list(fromStart); len(shards) > 0 {
			found = r.look(ctx, shards, floors, fromStart)
			if fromStart {
				fromStartAt = r.now().Add(rescanEvery)
			}
		}
		pause = nextPause(pause, r.config().Batch.PollInterval, found)
		timer.Reset(pause)
	}
}

// untilLook is how long after a look the next one comes.
func untilLook(pause time.Duration, rung bool) time.Duration {
	if rung {
		return min(pause, ringPause)
	}
	return pause
}

// nextPause is the pause before the next look.
func nextPause(pause, least time.Duration, found bool) time.Duration {
	if found {
		return least
	}
	return min(max(pause+least, least), idleFactor*least)
}

func (r *Relay) look(ctx context.Context, shards []int16, floors []message.Position, fromStart bool) bool {
	work, err := r.store.Waiting(ctx, shards, floors)
	if err != nil {
		r.storeFailed(ctx, loopLook, err)
		return false
	}
	r.health.succeeded(loopLook)
	return r.idle.wake(work, fromStart)
}
