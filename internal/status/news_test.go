package status_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
	"github.com/postrider/postrider/internal/statusz"
)

const interval = 15 * time.Second

// relaySeen is the status of a relay with one worker that reports so many messages, the oldest so old.
func relaySeen(
	before v1alpha1.OutboxRelayStatus,
	at time.Time,
	change func(*statusz.Report),
) v1alpha1.OutboxRelayStatus {
	report := relayReport(func(r *statusz.Report) {
		r.Relay.HeldShards = []int16{0, 1, 2, 3}
		r.ObservedTime = &at
		r.Relay.Backlog = &statusz.Backlog{Precision: "Exact"}
		if change != nil {
			change(r)
		}
	})
	return status.Relays().Compute(before, status.Facts{
		Generation: 3, Replicas: 1, Ready: 1, Interval: interval, Now: at,
	}, []statusz.Report{report})
}

func messages(n int64, age time.Duration, at time.Time) func(*statusz.Report) {
	return func(r *statusz.Report) {
		r.Relay.Backlog.Messages = n
		if n > 0 {
			oldest := at.Add(-age)
			r.Relay.Backlog.OldestMessageTime = &oldest
		}
		perSecond := n * 2
		r.Relay.PublishedPerSec, r.Relay.PublishedTotal = &perSecond, n*100
	}
}

func TestWhatIsNews(t *testing.T) {
	t.Parallel()
	later := now.Add(interval)
	rate := func(n int64) func(*statusz.Report) {
		return func(r *statusz.Report) { r.Relay.PublishedPerSec = &n }
	}
	cases := map[string]struct {
		stored, seen func(*statusz.Report)
		last         func(*statusz.Report) // nil: as stored
		news         bool
	}{
		"nothing moves": {
			messages(5, time.Minute, now),
			func(r *statusz.Report) { messages(5, time.Minute, now)(r) },
			nil,
			false,
		},
		"a backlog grows by a tenth": {
			messages(1000, time.Minute, now),
			messages(1100, time.Minute, later),
			nil,
			true,
		},
		"a backlog grows a little": {
			messages(1000, time.Minute, now),
			messages(1050, time.Minute+interval, later),
			nil,
			false,
		},
		"a little that comes to rest is written": {
			messages(1000, time.Minute, now),
			messages(1050, time.Minute, now),
			messages(1050, time.Minute, now),
			true,
		},
		"a few messages pass through": {
			rate(1),
			func(r *statusz.Report) { messages(3, time.Second, later)(r); rate(1)(r) },
			nil,
			false,
		},
		"a few messages get old": {
			rate(1),
			func(r *statusz.Report) { messages(3, time.Minute, later)(r); rate(1)(r) },
			nil,
			true,
		},
		"the oldest message moves on": {
			messages(100, time.Minute, now),
			func(r *statusz.Report) { messages(100, time.Second, later)(r) },
			nil,
			true,
		},
		"work begins":                   {rate(0), rate(1), nil, true},
		"work ends":                     {rate(7), rate(0), nil, true},
		"a rate moves within its noise": {rate(100), rate(130), nil, false},
		"a rate doubles":                {rate(100), rate(200), nil, true},
		"a retry begins": {
			nil,
			func(r *statusz.Report) { r.Relay.Backlog.Retrying = 1 },
			nil,
			true,
		},
		"a message is with the broker": {
			nil,
			func(r *statusz.Report) { r.Relay.Backlog.InFlight = 1 },
			nil,
			false,
		},
		"a dead letter comes": {
			nil,
			func(r *statusz.Report) { r.Relay.DeadLetters.Open = 1 },
			nil,
			true,
		},
		"a count is unknown, which is not 0": {
			nil,
			func(r *statusz.Report) { r.Relay.DeadLetters = nil },
			nil,
			true,
		},
		"the time of the last publish alone moves": {
			nil,
			func(r *statusz.Report) { r.Relay.LastPublishedTime = &later },
			nil,
			false,
		},
		"a shard is lost": {
			nil,
			func(r *statusz.Report) { r.Relay.HeldShards = []int16{0, 1, 2} },
			nil,
			true,
		},
		"the broker goes": {nil, func(r *statusz.Report) {
			r.Conditions[2] = statusz.Condition{Type: "BrokerReachable", Status: "False", Reason: "Unreachable"}
		}, nil, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored := relaySeen(v1alpha1.OutboxRelayStatus{}, now, tc.stored)
			lastSeen := tc.stored
			if tc.last != nil {
				lastSeen = tc.last
			}
			last := relaySeen(stored, now, lastSeen)
			seen := relaySeen(stored, later, tc.seen)
			facts := status.Facts{Interval: interval, Now: later}
			if got := status.Relays().News(stored, &last, seen, facts); got != tc.news {
				t.Errorf("news = %v, want %v\nstored %+v\nseen   %+v", got, tc.news, stored.Backlog, seen.Backlog)
			}
		})
	}
}

// G14: a key that waits for its retry moves nothing, however long it waits.
func TestAKeyInRetryWritesNothing(t *testing.T) {
	t.Parallel()
	waiting := func(r *statusz.Report) {
		oldest := now.Add(-time.Hour)
		zero := int64(0)
		r.Relay.Backlog.Messages, r.Relay.Backlog.Retrying, r.Relay.Backlog.OldestMessageTime = 1, 1, &oldest
		r.Relay.PublishedPerSec = &zero
	}
	stored := relaySeen(v1alpha1.OutboxRelayStatus{}, now, waiting)
	last, writes := stored, 0
	for i := range 240 { // an hour
		at := now.Add(time.Duration(i+1) * interval)
		seen := relaySeen(stored, at, func(r *statusz.Report) {
			waiting(r)
			if i%8 == 7 { // the retry is with the broker at the moment of the look
				r.Relay.Backlog.InFlight = 1
			}
		})
		if status.Relays().News(stored, &last, seen, status.Facts{Interval: interval, Now: at}) {
			writes++
			stored = seen
		}
		last = seen
	}
	if writes != 0 {
		t.Errorf("%d writes in an hour, want none", writes)
	}
}

// A look that is not new compares with itself: it must not take that for rest.
func TestAnEventBetweenTwoLooksIsNoRest(t *testing.T) {
	t.Parallel()
	stored := relaySeen(v1alpha1.OutboxRelayStatus{}, now, messages(1000, time.Minute, now))
	seen := relaySeen(stored, now.Add(interval), messages(1050, time.Minute+interval, now.Add(interval)))
	if status.Relays().News(stored, nil, seen, status.Facts{Interval: interval, Now: now.Add(interval)}) {
		t.Error("a small change is written without a new look")
	}
}

func TestConsumerNews(t *testing.T) {
	t.Parallel()
	perSecond := int64(100)
	see := func(applied, lag int64, parked *int64) v1alpha1.InboxConsumerStatus {
		return status.Consumers().Compute(
			v1alpha1.InboxConsumerStatus{},
			status.Facts{Generation: 1, Replicas: 1, Ready: 1, Now: now},
			[]statusz.Report{{Generation: 1, Consumer: &statusz.Consumer{
				AppliedTotal: applied, AppliedPerSec: &perSecond, Parked: parked, Lag: &statusz.Lag{Messages: lag},
			}}},
		)
	}
	one, none := int64(1), int64(0)
	facts := status.Facts{Interval: interval, Now: now}
	stored := see(1000, 0, &none)
	for name, tc := range map[string]struct {
		seen v1alpha1.InboxConsumerStatus
		news bool
	}{
		"a few more applied":    {see(1020, 3, &none), false},
		"many more applied":     {see(1500, 3, &none), true},
		"a message is parked":   {see(1001, 0, &one), true},
		"parked is not known":   {see(1001, 0, nil), true},
		"a lag that is no blip": {see(1001, 500, &none), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := status.Consumers().News(stored, nil, tc.seen, facts); got != tc.news {
				t.Errorf("news = %v, want %v", got, tc.news)
			}
		})
	}
}

// What is written and read back by the API server is the same to the second.
func TestTimesAreWholeSeconds(t *testing.T) {
	t.Parallel()
	odd := now.Add(-time.Minute + 123456789)
	got := relaySeen(v1alpha1.OutboxRelayStatus{}, now, func(r *statusz.Report) {
		r.ObservedTime, r.Relay.LastPublishedTime, r.Relay.Backlog.OldestMessageTime = &odd, &odd, &odd
	})
	for name, at := range map[string]*metav1.Time{
		"observed": got.ObservedTime, "published": got.LastPublishedTime, "oldest": got.Backlog.OldestMessageTime,
	} {
		if at.Nanosecond() != 0 {
			t.Errorf("%s time %v has parts of a second", name, at.Time)
		}
	}
}
