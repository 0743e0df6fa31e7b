package status_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
	"github.com/postrider/postrider/internal/statusz"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func good(names ...string) []statusz.Condition {
	var cs []statusz.Condition
	for _, n := range names {
		cs = append(cs, statusz.Condition{Type: n, Status: "True", Reason: "Reachable"})
	}
	return cs
}

func relayReport(change func(*statusz.Report)) statusz.Report {
	r := statusz.Report{
		Version: statusz.Version, Worker: "a", Generation: 3, RunPolicy: "Run",
		Conditions: good(v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady,
			v1alpha1.ConditionBrokerReachable),
		Relay: &statusz.Relay{
			Shards: 4, HeldShards: []int16{0, 1}, Destination: "nats/orders",
			Backlog:     &statusz.Backlog{Messages: 10, Precision: "Exact"},
			DeadLetters: &statusz.Count{},
		},
	}
	if change != nil {
		change(&r)
	}
	return r
}

func secondHalf(r *statusz.Report) { r.Worker, r.Relay.HeldShards = "b", []int16{2, 3} }

func TestRelayReady(t *testing.T) {
	t.Parallel()

	facts := status.Facts{Generation: 3, Replicas: 2, Ready: 2, Now: now}
	cases := map[string]struct {
		facts   status.Facts
		reports []statusz.Report
		status  metav1.ConditionStatus
		reason  string
	}{
		"two workers of this generation with all well are ready": {
			facts, []statusz.Report{relayReport(nil), relayReport(secondHalf)}, "True", "Ready",
		},
		"nobody has reported, so nobody knows": {facts, nil, "Unknown", "NotReported"},
		"a worker of the generation before makes it progress": {
			facts,
			[]statusz.Report{relayReport(nil), relayReport(func(r *statusz.Report) { r.Generation = 2 })},
			"False", "Progressing",
		},
		"one worker that cannot log in is enough, and its reason is named": {
			facts, []statusz.Report{relayReport(nil), relayReport(func(r *statusz.Report) {
				r.Conditions[0] = statusz.Condition{Type: "DatabaseReachable", Status: "False", Reason: "AuthFailed"}
			})}, "False", "AuthFailed",
		},
		"a worker that has not looked yet leaves it unknown": {
			facts,
			[]statusz.Report{relayReport(nil), relayReport(func(r *statusz.Report) { r.Conditions = nil })},
			"Unknown", "Starting",
		},
		"a refused config is named first": {
			facts,
			[]statusz.Report{relayReport(func(r *statusz.Report) { r.ConfigError, r.Generation = "field x", 2 })},
			"False", "InvalidConfig",
		},
		"a table of another relay stops it": {
			facts, []statusz.Report{relayReport(nil), relayReport(func(r *statusz.Report) {
				r.Conditions = append(
					r.Conditions,
					statusz.Condition{Type: "TableInUse", Status: "True", Reason: "InUse"},
				)
			})}, "False", "TableInUse",
		},
		"a worker that is missing is told when nothing else is wrong": {
			status.Facts{Generation: 3, Replicas: 2, Ready: 1, Now: now},
			[]statusz.Report{relayReport(nil)},
			"False", "Unavailable",
		},
		"nothing that should run is no mystery": {
			status.Facts{Generation: 3, Stale: true, Now: now}, nil, "False", "ScaledToZero",
		},
		"the last worker of a relay that is scaled to zero makes it no readier": {
			status.Facts{
				Generation: 3,
				Ready:      1,
				Now:        now,
			},
			[]statusz.Report{relayReport(nil)},
			"False",
			"ScaledToZero",
		},
		"what stalls a relay that is scaled to zero is named first": {
			status.Facts{Generation: 3, Now: now, Stalled: &status.Problem{Reason: "InvalidSpec"}},
			nil,
			"False", "InvalidSpec",
		},
		"a paused relay is ready and says that it is paused": {
			facts, []statusz.Report{relayReport(func(r *statusz.Report) { r.RunPolicy = "Pause" })}, "True", "Paused",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, tc.facts, tc.reports)
			c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReady)
			if c == nil || c.Status != tc.status || c.Reason != tc.reason || c.ObservedGeneration != 3 {
				t.Fatalf("Ready = %+v, want %s %s of generation 3", c, tc.status, tc.reason)
			}
		})
	}
}

func TestRelayCounts(t *testing.T) {
	t.Parallel()

	facts := status.Facts{Generation: 3, Replicas: 2, Ready: 2, Now: now}
	oldest := now.Add(-time.Minute)
	perSecond := int64(4)
	first := relayReport(func(r *statusz.Report) {
		r.Relay.Backlog.OldestMessageTime = &oldest
		r.Relay.PublishedPerSec = &perSecond
	})

	both := status.Relays().
		Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{first, relayReport(secondHalf)})
	if *both.Backlog.Messages != 20 || both.Backlog.Precision != "Exact" || *both.Lease.Held != 4 {
		t.Errorf("two halves: backlog %d %s, held %d; want 20 Exact, 4",
			*both.Backlog.Messages, both.Backlog.Precision, *both.Lease.Held)
	}
	if !both.Backlog.OldestMessageTime.Time.Equal(oldest) || both.Backlog.EstimatedDrainTime != "5s" {
		t.Errorf("oldest %v, drain time %q; want %v, 5s",
			both.Backlog.OldestMessageTime, both.Backlog.EstimatedDrainTime, oldest)
	}

	arriving := func(r *statusz.Report) { r.Relay.PublishedPerSec, r.Relay.ArrivedPerSec = &perSecond, &perSecond }
	rates := func(second func(*statusz.Report)) *v1alpha1.RelayRates {
		return status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{
			relayReport(arriving), relayReport(func(r *statusz.Report) { secondHalf(r); second(r) }),
		}).Rates
	}
	if r := rates(arriving); *r.PublishedPerSecond != 8 || *r.ArrivedPerSecond != 8 {
		t.Errorf("rates of two halves = %+v, want 8 and 8", r)
	}
	if r := rates(func(*statusz.Report) {}); *r.PublishedPerSecond != 4 || r.ArrivedPerSecond != nil {
		t.Errorf("rates = %+v, want what arrives unknown while one half does not know", r)
	}

	half := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{first})
	if half.Backlog.Precision != "AtLeast" {
		t.Errorf("two of four shards held: precision %s, want AtLeast", half.Backlog.Precision)
	}

	blind := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{
		first, relayReport(func(r *statusz.Report) { secondHalf(r); r.Relay.Backlog = nil }),
	})
	if blind.Backlog != nil {
		t.Errorf("a worker that cannot count its shards: backlog %+v, want it absent", blind.Backlog)
	}
}

func TestTransitionTimesStay(t *testing.T) {
	t.Parallel()

	facts := status.Facts{Generation: 3, Replicas: 1, Ready: 1, Now: now}
	warned := relayReport(func(r *statusz.Report) {
		r.Conditions = append(r.Conditions, statusz.Condition{Type: "TargetMayDiscard", Status: "True", Reason: "x"})
	})
	before := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{warned})
	if meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionTargetMayDiscard) == nil {
		t.Fatal("a worker's warning is not in the status")
	}
	facts.Now = now.Add(time.Hour)
	after := status.Relays().Compute(before, facts, []statusz.Report{relayReport(nil)})
	if c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionReady); !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("Ready did not change, but its time moved to %v", c.LastTransitionTime)
	}
	if meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionTargetMayDiscard) != nil {
		t.Error("a warning that no worker gives any more is still there")
	}
}

func TestConsumer(t *testing.T) {
	t.Parallel()

	facts := status.Facts{Generation: 1, Replicas: 2, Ready: 2, Now: now}
	parked := int64(7)
	report := func(applied int64, parked *int64) statusz.Report {
		return statusz.Report{
			Generation: 1, RunPolicy: "Run",
			Conditions: good(v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady,
				v1alpha1.ConditionSourceReachable),
			Consumer: &statusz.Consumer{AppliedTotal: applied, Parked: parked, Source: "nats/ORDERS"},
		}
	}
	got := status.Consumers().
		Compute(v1alpha1.InboxConsumerStatus{}, facts, []statusz.Report{report(5, &parked), report(6, nil)})
	if *got.Inbox.Processed != 11 || *got.Inbox.Parked != 7 || got.Inbox.Gaps != nil || got.Lag != nil {
		t.Errorf("inbox %+v, lag %v; want 11 processed, 7 parked, gaps and lag absent", got.Inbox, got.Lag)
	}
	if !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("Ready is not True: %+v", got.Conditions)
	}
}
