package relay

import (
	"testing"
	"time"
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
// floor says: new rows may lie below it.
func TestALookThatAnotherServerAnswersWakesALaneToReadFromTheStart(t *testing.T) {
	t.Parallel()
	then := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		server    time.Time
		found     []int16
		fromStart bool
		want      []bool // what the lane is told
	}{
		"nothing is found":                {then, nil, false, nil},
		"another shard has something":     {then, []int16{2}, true, nil},
		"it has something":                {then, []int16{1}, false, []bool{false}},
		"it has something from the start": {then, []int16{1}, true, []bool{true}},
		"another server finds nothing":    {then.Add(time.Microsecond), nil, false, []bool{true}},
		"another server finds something":  {then.Add(-time.Hour), []int16{1}, false, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idle, wake := newIdlers(), make(chan bool, 1)
			idle.park(1, parked{floor: 7, server: then, wake: wake}, 0)
			if woken := idle.wake(tc.server, tc.found, tc.fromStart); woken != (tc.want != nil) {
				t.Errorf("woken: %v", woken)
			}
			if len(wake) != len(tc.want) || len(wake) == 1 && <-wake != tc.want[0] {
				t.Errorf("the lane was told otherwise than %v", tc.want)
			}
		})
	}
}
