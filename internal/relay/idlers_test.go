package relay

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/shard"
)

// A commit that is told of while a lane reads may lie behind what that read shows: the lane is not asleep yet, so the look
// passes it over, and must be repeated once it is.
func TestACommitDuringTheLastReadIsLookedForOnceTheLaneIsIdle(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]bool{"during the read": true, "before the read": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Relay{idle: newIdlers()}
			r.Committed()
			before := r.idle.commits.Load()
			if during {
				r.Committed()
			}
			<-r.idle.rung // the look that passes over the lane
			r.idle.park(1, parked{wake: make(chan bool, 1)}, before)
			if rung := len(r.idle.rung) == 1; rung != during {
				t.Errorf("asks for another look: %v, want %v", rung, during)
			}
		})
	}
}

// P17: an idle lane whose server was replaced by one that was restored, or lacks the last commits, is woken whatever its
// floor says: new rows may lie below it. So is one that waits for a long transaction, when that ends.
func TestALookThatAnotherServerAnswersWakesALaneToReadFromTheStart(t *testing.T) {
	t.Parallel()
	then := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	both := []uint64{8, 9}
	for name, tc := range map[string]struct {
		work      shard.Work
		fromStart bool
		want      []bool // what the lane is told
	}{
		"nothing is found":                {shard.Work{Server: then, Running: both}, false, nil},
		"another shard has something":     {shard.Work{Server: then, Running: both, Shards: []int16{2}}, true, nil},
		"it has something":                {shard.Work{Server: then, Running: both, Shards: []int16{1}}, false, []bool{false}},
		"it has something from the start": {shard.Work{Server: then, Running: both, Shards: []int16{1}}, true, []bool{true}},
		"others run too":                  {shard.Work{Server: then, Running: []uint64{7, 8, 9}}, false, nil},
		"a long transaction has ended":    {shard.Work{Server: then, Running: []uint64{7, 9}}, false, []bool{false}},
		"another server finds nothing":    {shard.Work{Server: then.Add(time.Microsecond), Running: both}, false, []bool{true}},
		"another server finds something":  {shard.Work{Server: then.Add(-time.Hour), Running: both, Shards: []int16{1}}, false, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idle, wake := newIdlers(), make(chan bool, 1)
			idle.park(1, parked{floor: 7, server: then, open: []uint64{8, 9}, wake: wake}, 0)
			if woken := idle.wake(tc.work, tc.fromStart); woken != (tc.want != nil) {
				t.Errorf("woken: %v", woken)
			}
			if len(wake) != len(tc.want) || len(wake) == 1 && <-wake != tc.want[0] {
				t.Errorf("the lane was told otherwise than %v", tc.want)
			}
		})
	}
}
