package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/shard"
)

// What came in is what has left and what is there more; where that is not known there is no rate, and never 0.
func TestArrivals(t *testing.T) {
	t.Parallel()
	type look struct {
		after time.Duration
		held  []int16
		left  int // rows that have left since the look before
		is    shard.Backlog
		want  string
	}
	one, both := []int16{1}, []int16{1, 2}
	cases := map[string][]look{
		"the first look has nothing to compare with": {{held: one, is: shard.Backlog{Ready: 7}, want: "unknown"}},
		"what is published at once came in too": {
			{held: one, want: "unknown"}, {after: 10 * time.Second, held: one, left: 50, want: "5"},
		},
		"what waits for a retry came in as well": {
			{held: one, want: "unknown"},
			{
				after: 2 * time.Second,
				held:  one,
				left:  4,
				is:    shard.Backlog{Ready: 2, Retrying: 1, Blocked: 1},
				want:  "4",
			},
		},
		"a backlog that is only worked off grows by nothing": {
			{held: one, is: shard.Backlog{Ready: 20}, want: "unknown"},
			{after: 2 * time.Second, held: one, left: 20, want: "0"},
		},
		"a row that is deleted by hand makes no negative rate": {
			{held: one, is: shard.Backlog{Ready: 20}, want: "unknown"}, {after: 2 * time.Second, held: one, want: "0"},
		},
		"the backlog of other shards is no arrival": {
			{held: one, want: "unknown"},
			{after: 2 * time.Second, held: both, is: shard.Backlog{Ready: 900}, want: "unknown"},
			{after: 2 * time.Second, held: both, is: shard.Backlog{Ready: 904}, want: "2"},
		},
		"a count that stopped at its bound says nothing": {
			{held: one, want: "unknown"},
			{after: 2 * time.Second, held: one, is: shard.Backlog{Ready: 900, AtLeast: true}, want: "unknown"},
			{after: 2 * time.Second, held: one, is: shard.Backlog{Ready: 4}, want: "unknown"},
		},
		"what was long ago is forgotten": {
			{held: one, want: "unknown"},
			{after: 10 * time.Second, held: one, left: 100, want: "10"},
			{after: 10 * time.Second, held: one, want: "0"},
		},
	}
	for name, looks := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var totals totals
			now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
			for i, l := range looks {
				now = now.Add(l.after)
				b := &batch{got: make([]broker.Confirmation, l.left)}
				for n := range b.got {
					b.got[n].Outcome = broker.Confirmed
				}
				if l.left > 0 { // the last one was not wanted any more, and has left as well
					b.got[l.left-1].Position = placeExpired
				}
				totals.published(now, b)
				got := "unknown"
				if rate := totals.arrived(now, l.held, l.is); rate != nil {
					got = fmt.Sprint(*rate)
				}
				if got != l.want {
					t.Errorf("look %d: %s a second, want %s", i, got, l.want)
				}
			}
		})
	}
}
