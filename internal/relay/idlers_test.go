package relay

import "testing"

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
			r.idle.park(1, 0, before, make(chan bool, 1))
			if rung := len(r.idle.rung) == 1; rung != during {
				t.Errorf("asks for another look: %v, want %v", rung, during)
			}
		})
	}
}
