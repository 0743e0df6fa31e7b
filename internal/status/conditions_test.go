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

// step is the report of the step before a worker.
func step(conditions ...statusz.Condition) statusz.Report {
	return statusz.Report{Step: statusz.StepSchema, Generation: 3, RunPolicy: "Run", Conditions: conditions}
}

func wants(t *testing.T, got []metav1.Condition, kind string, state metav1.ConditionStatus, reason string) {
	t.Helper()
	c := meta.FindStatusCondition(got, kind)
	if c == nil || c.Status != state || c.Reason != reason {
		t.Errorf("%s = %+v, want %s %s", kind, c, state, reason)
	}
}

func lacks(t *testing.T, got []metav1.Condition, kind string) {
	t.Helper()
	if c := meta.FindStatusCondition(got, kind); c != nil {
		t.Errorf("%s is there: %+v", kind, c)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	facts := status.Facts{Generation: 3, Replicas: 2, Ready: 2, Interval: interval, Now: now}
	with := func(change func(*status.Facts)) status.Facts {
		f := facts
		change(&f)
		return f
	}
	both := []statusz.Report{relayReport(nil), relayReport(secondHalf)}
	type want struct {
		kind   string
		state  metav1.ConditionStatus
		reason string
	}
	cases := map[string]struct {
		facts   status.Facts
		reports []statusz.Report
		wants   []want
		lacks   []string
	}{
		"all is well": {
			facts, both,
			[]want{
				{"Ready", "True", "Ready"},
				{"ReferencesResolved", "True", "Resolved"},
				{"WorkloadAvailable", "True", "Available"},
				{"DeadLettersHealthy", "True", "WithinBounds"},
			},
			[]string{"Reconciling", "Stalled", "NameConflict", "InsecureTransport"},
		},
		"a rollout is under way": {
			with(func(f *status.Facts) { f.Rollout = "1 of 2 workers" }), both,
			[]want{{"Ready", "False", "Progressing"}, {"Reconciling", "True", "Progressing"}},
			[]string{"Stalled"},
		},
		"a worker has not read the newest config": {
			with(func(f *status.Facts) { f.Generation = 4 }), both,
			[]want{{"Ready", "False", "Progressing"}, {"Reconciling", "True", "Progressing"}},
			nil,
		},
		"what stalls is said before all else": {
			with(func(f *status.Facts) {
				f.Stalled, f.Rollout = &status.Problem{Reason: "InvalidSpec", Message: "x"}, "1 of 2 workers"
			}), both,
			[]want{{"Ready", "False", "InvalidSpec"}, {"Stalled", "True", "InvalidSpec"}},
			[]string{"Reconciling"},
		},
		"an object in the way is a condition of its own": {
			with(func(f *status.Facts) { f.Conflict = "Deployment x" }), both,
			[]want{{"NameConflict", "True", "InUse"}},
			nil,
		},
		"a table of another relay stalls": {
			facts,
			[]statusz.Report{relayReport(func(r *statusz.Report) {
				r.Conditions = append(
					r.Conditions,
					statusz.Condition{Type: "TableInUse", Status: "True", Reason: "InUse"},
				)
			})},
			[]want{{"Ready", "False", "TableInUse"}, {"Stalled", "True", "TableInUse"}},
			nil,
		},
		"a pass that failed is repeated": {
			with(func(f *status.Facts) { f.Failed = &status.Problem{Reason: "ReconcileError"} }), both,
			[]want{{"Ready", "False", "ReconcileError"}, {"DatabaseReachable", "True", "Reachable"}},
			[]string{"Stalled"},
		},
		"what the step before a worker knows counts before what it does not": {
			facts,
			[]statusz.Report{step(statusz.Condition{Type: "SchemaReady", Status: "False", Reason: "AuthFailed"})},
			[]want{{"Ready", "False", "AuthFailed"}, {"DatabaseReachable", "Unknown", "Starting"}},
			nil,
		},
		"a missing Secret is an unresolved reference": {
			facts,
			[]statusz.Report{relayReport(func(r *statusz.Report) {
				r.Conditions[0] = statusz.Condition{
					Type:   "DatabaseReachable",
					Status: "False",
					Reason: "SecretNotFound",
				}
			})},
			[]want{{"ReferencesResolved", "False", "SecretNotFound"}, {"Ready", "False", "SecretNotFound"}},
			nil,
		},
		"reports that got too old are no knowledge": {
			with(func(f *status.Facts) { f.Stale = true }), nil,
			[]want{
				{"Ready", "Unknown", "StatusStale"},
				{"DatabaseReachable", "Unknown", "StatusStale"},
				{"BacklogHealthy", "Unknown", "StatusStale"},
				{"WorkloadAvailable", "True", "Available"},
			},
			nil,
		},
		"one silent worker leaves it unknown": {
			with(func(f *status.Facts) { f.Silent = 1 }), both[:1],
			[]want{{"Ready", "Unknown", "NotReported"}, {"DatabaseReachable", "True", "Reachable"}},
			nil,
		},
		"Pods that cannot start are named where nobody reports": {
			with(
				func(f *status.Facts) { f.Ready, f.Waiting, f.Rollout = 0, "its image cannot be pulled", "0 of 2" },
			),
			nil,
			[]want{{"Ready", "False", "Unavailable"}, {"WorkloadAvailable", "False", "Unavailable"}},
			nil,
		},
		"scaled to nothing it is not ready, and nobody knows the rest": {
			with(func(f *status.Facts) { f.Replicas, f.Ready = 0, 0 }), nil,
			[]want{
				{"Ready", "False", "ScaledToZero"},
				{"WorkloadAvailable", "True", "Available"},
				{"DatabaseReachable", "Unknown", "ScaledToZero"},
			},
			nil,
		},
		"the step before the workers says why they do not start": {
			with(func(f *status.Facts) { f.Ready, f.Rollout = 0, "0 of 2" }),
			[]statusz.Report{step(statusz.Condition{Type: "SchemaReady", Status: "False", Reason: "AuthFailed"})},
			[]want{
				{"SchemaReady", "False", "AuthFailed"},
				{"BrokerReachable", "Unknown", "Starting"},
				{"Reconciling", "True", "Progressing"},
			},
			nil,
		},
		"a step that is at work hides nothing of the workers": {
			with(func(f *status.Facts) { f.Rollout = "1 of 2" }),
			append(
				[]statusz.Report{step(statusz.Condition{Type: "SchemaReady", Status: "Unknown", Reason: "Starting"})},
				both...),
			[]want{
				{"Ready", "False", "Progressing"},
				{"SchemaReady", "True", "Reachable"},
				{"BrokerReachable", "True", "Reachable"},
			},
			nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, tc.facts, tc.reports)
			for _, w := range tc.wants {
				wants(t, got.Conditions, w.kind, w.state, w.reason)
			}
			for _, kind := range tc.lacks {
				lacks(t, got.Conditions, kind)
			}
			for _, c := range got.Conditions {
				if c.Reason == "" || c.ObservedGeneration != tc.facts.Generation {
					t.Errorf("incomplete: %+v", c)
				}
			}
			if len(tc.reports) == 0 && got.Backlog != nil {
				t.Errorf("a backlog of %d that nobody reports", *got.Backlog.Messages)
			}
		})
	}
}

func TestBacklogHealthy(t *testing.T) {
	t.Parallel()
	report := func(messages, waiting, perSecond int64, known bool) []statusz.Report {
		return []statusz.Report{relayReport(func(r *statusz.Report) {
			r.Relay.HeldShards = []int16{0, 1, 2, 3}
			r.Relay.Backlog.Messages, r.Relay.Backlog.Retrying = messages, waiting
			if known {
				r.Relay.PublishedPerSec = &perSecond
			}
		})}
	}
	cases := map[string]struct {
		reports []statusz.Report
		slowFor time.Duration
		slow    bool
		state   metav1.ConditionStatus
	}{
		"nothing to do":                            {report(0, 0, 0, false), 0, false, "True"},
		"work for less than a minute":              {report(600, 0, 10, true), 0, false, "True"},
		"work for more than a minute, seen once":   {report(601, 0, 10, true), 0, true, "True"},
		"work for more than a minute, seen thrice": {report(601, 0, 10, true), 3 * interval, true, "False"},
		"nothing moves, seen thrice":               {report(1, 0, 0, true), 3 * interval, true, "False"},
		"only retries wait":                        {report(5, 5, 0, true), 0, false, "True"},
		"the rate is not known yet":                {report(5, 0, 0, false), 0, false, "Unknown"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := status.Relays().Slow(tc.reports); got != tc.slow {
				t.Errorf("slow = %v, want %v", got, tc.slow)
			}
			got := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, status.Facts{
				Generation: 3, Replicas: 1, Ready: 1, Interval: interval, SlowFor: tc.slowFor, Now: now,
			}, tc.reports)
			if c := meta.FindStatusCondition(got.Conditions, "BacklogHealthy"); c == nil || c.Status != tc.state {
				t.Errorf("BacklogHealthy = %+v, want %s", c, tc.state)
			}
		})
	}
}

// The table of kubectl has one column for words: what somebody should look at stands there, whether messages move or not.
func TestAReadyResourceSaysWhatToLookAt(t *testing.T) {
	t.Parallel()
	facts := status.Facts{Generation: 3, Replicas: 2, Ready: 2, Interval: interval, Now: now}
	cases := map[string]struct {
		change func(*statusz.Report)
		want   string
	}{
		"nothing": {func(*statusz.Report) {}, ""},
		"an open dead letter": {
			func(r *statusz.Report) { r.Relay.DeadLetters.Open = 1 },
			"1 dead letter is open: postrider dead-letters list says why",
		},
		"a broker that is down, and dead letters": {
			func(r *statusz.Report) {
				r.Relay.DeadLetters.Open = 2
				r.Conditions[2] = statusz.Condition{
					Type: "BrokerReachable", Status: "False", Reason: "Unreachable", Message: "cannot reach it",
				}
			},
			"cannot reach it",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := status.Relays().Compute(v1alpha1.OutboxRelayStatus{}, facts, []statusz.Report{
				relayReport(tc.change), relayReport(func(r *statusz.Report) { secondHalf(r); tc.change(r) }),
			})
			if c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReady); c.Message != tc.want {
				t.Errorf("Ready says %q, want %q", c.Message, tc.want)
			}
		})
	}
}
