package relay

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// The answers of these tests.
var (
	took    = broker.Confirmation{Outcome: broker.Confirmed, Position: "S@1"}
	refused = broker.Confirmation{Outcome: broker.Rejected, Reason: broker.ReasonTooLarge}
	unclear = broker.Confirmation{Outcome: broker.Ambiguous, Reason: broker.ReasonPermissionDenied}
	silent  = broker.Confirmation{Outcome: broker.Unknown, Reason: broker.ReasonNoAnswer}
	down    = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonUnreachable}
	notSent = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotSent}
	blocked = broker.Confirmation{Outcome: broker.Unknown, Reason: broker.ReasonBlocked}
)

// unitName is the unit of every row of these tests, unless the key says another.
const unitName = "test"

// oneUnit are the facts of a broker that is one unit.
func oneUnit(unordered bool, unsure map[message.ID]doubt) facts {
	return facts{
		unordered: unordered, unsure: unsure, broker: unitName, unit: func(*shard.Row) string { return unitName },
	}
}

// seen are witnesses.
type seen struct {
	working bool
	at      time.Time
}

func (s seen) works(*shard.Row) bool { return s.working }

func (s seen) otherGotThrough(_ *shard.Row, after time.Time) bool { return s.at.After(after) }

// outcome is a verdict by positions.
type outcome struct {
	Done, Refused, Hold, Forget, Ahead []message.Position
	Attempts                           int
	Outage                             broker.Reason
}

func outcomeOf(v verdict) outcome {
	o := outcome{
		Done:   at(v.done),
		Hold:   at(v.hold),
		Forget: at(v.forget),
		Ahead:  at(v.ahead),
		Outage: v.outages[unitName].Reason,
	}
	for _, f := range v.refused {
		o.Refused = append(o.Refused, f.row.Position)
		if f.attempt {
			o.Attempts++
		}
	}
	return o
}

func TestJudge(t *testing.T) {
	t.Parallel()
	type positions = []message.Position
	a1, b2, a3, b4 := row("a", 1), row("b", 2), row("a", 3), row("b", 4)
	a5, b6 := row("a", 5), row("b", 6)
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

	cases := map[string]struct {
		rows, ahead []shard.Row
		got         []broker.Confirmation
		unordered   bool
		unsure      []shard.Row   // since an hour
		times       int           // and how often; 0: once
		other       time.Duration // since when another key got through, where not in this batch
		want        outcome
	}{
		"everything confirmed is settled": {
			rows: rows(a1, b2), ahead: rows(a3), got: []broker.Confirmation{took, took},
			want: outcome{Done: positions{1, 2}, Ahead: positions{3}},
		},
		"a refused row holds the rest of its key, read-ahead rows too": {
			rows:  rows(a1, b2, a3),
			ahead: rows(b4, a5),
			got:   []broker.Confirmation{refused, took, notSent},
			want: outcome{
				Done:     positions{2},
				Refused:  positions{1},
				Attempts: 1,
				Hold:     positions{3, 5},
				Ahead:    positions{4},
			},
		},
		"what was confirmed before the refused row is settled": {
			rows: rows(a1, a3), got: []broker.Confirmation{took, refused},
			want: outcome{Done: positions{1}, Refused: positions{3}, Attempts: 1},
		},
		"a row that cannot be told from its surroundings waits without an attempt": {
			rows: rows(a1, b2), got: []broker.Confirmation{unclear, took},
			want: outcome{Done: positions{2}, Refused: positions{1}},
		},
		"a row without an answer is forgotten with the rest of its key, read-ahead rows too": {
			rows: rows(a1, b2, a3), ahead: rows(a5, b6), got: []broker.Confirmation{silent, took, notSent},
			want: outcome{Done: positions{2}, Forget: positions{1, 3, 5}, Ahead: positions{6}},
		},
		"a confirmation behind a row without an answer does not count": {
			rows: rows(a1, b2, a3), got: []broker.Confirmation{silent, took, took},
			want: outcome{Done: positions{2}, Forget: positions{1, 3}},
		},
		"a confirmation behind a refused row does not count": {
			rows: rows(a1, a3), got: []broker.Confirmation{refused, took},
			want: outcome{Refused: positions{1}, Attempts: 1, Hold: positions{3}},
		},
		"a unit that is not there fails, and nothing is kept": {
			rows: rows(a1, b2), ahead: rows(a3, b4), got: []broker.Confirmation{took, down},
			want: outcome{Done: positions{1}, Forget: positions{2, 3, 4}, Outage: broker.ReasonUnreachable},
		},
		"no answer at all is a failure of the unit": {
			rows: rows(a1, b2), got: []broker.Confirmation{silent, silent},
			want: outcome{Forget: positions{1, 2}, Outage: broker.ReasonNoAnswer},
		},
		"no answer again, while another key gets through, lets the message wait": {
			rows: rows(a1, b2, a3), got: []broker.Confirmation{silent, took, notSent}, unsure: rows(a1),
			want: outcome{Done: positions{2}, Refused: positions{1}, Hold: positions{3}},
		},
		"no answer again, and another key got through since, lets the message wait": {
			rows: rows(a1, a3), got: []broker.Confirmation{silent, notSent}, unsure: rows(a1), other: time.Minute,
			want: outcome{Refused: positions{1}, Hold: positions{3}},
		},
		"no answer again, and another key got through before, is the unit's failure": {
			rows: rows(a1, a3), got: []broker.Confirmation{silent, notSent}, unsure: rows(a1), other: 2 * time.Hour,
			want: outcome{Forget: positions{1, 3}, Outage: broker.ReasonNoAnswer},
		},
		"who tries time and again whether the unit works lets another try": {
			rows: rows(a1), ahead: rows(a3), got: []broker.Confirmation{silent}, unsure: rows(a1), times: lonely,
			want: outcome{Refused: positions{1}, Hold: positions{3}, Outage: broker.ReasonNoAnswer},
		},
		"who has not tried as often goes on": {
			rows: rows(a1), got: []broker.Confirmation{silent}, unsure: rows(a1), times: lonely - 1,
			want: outcome{Forget: positions{1}, Outage: broker.ReasonNoAnswer},
		},
		"whole batches without an answer step aside for nobody": {
			rows: rows(a1, b2), got: []broker.Confirmation{silent, silent}, unsure: rows(a1, b2), times: lonely,
			want: outcome{Forget: positions{1, 2}, Outage: broker.ReasonNoAnswer},
		},
		"no answer for the first time, while others get through, is only repeated": {
			rows: rows(a1, b2), got: []broker.Confirmation{silent, took}, other: time.Minute,
			want: outcome{Done: positions{2}, Forget: positions{1}},
		},
		"a broker that is blocked is the broker's failure, whoever got through": {
			rows: rows(a1, b2), got: []broker.Confirmation{blocked, took}, unsure: rows(a1), other: time.Minute,
			want: outcome{Done: positions{2}, Forget: positions{1}, Outage: broker.ReasonBlocked},
		},
		"no answer again, while nothing gets through, is the unit's failure": {
			rows: rows(a1, b2), got: []broker.Confirmation{silent, silent}, unsure: rows(a1, b2),
			want: outcome{Forget: positions{1, 2}, Outage: broker.ReasonNoAnswer},
		},
		"where nothing is ordered a refused row holds only itself": {
			rows: rows(a1, a3), ahead: rows(a5), got: []broker.Confirmation{refused, took}, unordered: true,
			want: outcome{Done: positions{3}, Refused: positions{1}, Attempts: 1, Ahead: positions{5}},
		},
		"where nothing is ordered a row without an answer is forgotten alone": {
			rows: rows(a1, a3), ahead: rows(a5), got: []broker.Confirmation{silent, took}, unordered: true,
			want: outcome{Done: positions{3}, Forget: positions{1}, Ahead: positions{5}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unsure := make(map[message.ID]doubt)
			for _, r := range tc.unsure {
				unsure[r.ID] = doubt{at: noon.Add(-time.Hour), times: max(tc.times, 1)}
			}
			if tc.other == 0 {
				tc.other = 2 * time.Hour
			}
			b, w := &batch{rows: tc.rows, got: tc.got}, seen{at: noon.Add(-tc.other)}
			if diff := cmp.Diff(tc.want, outcomeOf(judge(b, tc.ahead, oneUnit(tc.unordered, unsure), w))); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAUnitThatFailsTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	f := facts{broker: "all", unit: func(r *shard.Row) string { return r.OrderingKey[:1] }}
	a1, b2, a3, b4 := row("a1", 1), row("b1", 2), row("a2", 3), row("b1", 4)
	unitDown := broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonStreamFull}

	cases := map[string]struct {
		got    []broker.Confirmation
		failed []string
		ahead  []message.Position
	}{
		"one unit is full":               {[]broker.Confirmation{unitDown, took}, []string{"a"}, []message.Position{4}},
		"one unit does not answer":       {[]broker.Confirmation{silent, took}, []string{"a"}, []message.Position{4}},
		"the broker cannot be reached":   {[]broker.Confirmation{down, took}, []string{"all"}, nil},
		"neither of two units is usable": {[]broker.Confirmation{silent, unitDown}, []string{"a", "b"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := judge(&batch{rows: rows(a1, b2), got: tc.got}, rows(a3, b4), f, seen{})
			if diff := cmp.Diff(tc.failed, slices.Sorted(maps.Keys(v.outages))); diff != "" {
				t.Errorf("failed units (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.ahead, at(v.ahead)); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScreen(t *testing.T) {
	t.Parallel()
	large := row("a", 1)
	large.Payload = nil
	foreign := row("a", 2)
	foreign.Source = "other"
	broken := row("a", 3)
	broken.Defect = "InvalidHeader"
	expired := row("e", 4)
	expired.Expired = true

	cases := map[string]struct {
		rows      []shard.Row
		unordered bool
		sent      []message.Position
		want      []broker.Reason
	}{
		"sound rows are sent": {
			rows: rows(row("a", 1), row("b", 2)),
			sent: []message.Position{1, 2},
			want: []broker.Reason{"", ""},
		},
		"a payload that was not loaded is refused": {
			rows: rows(large),
			want: []broker.Reason{broker.ReasonTooLarge},
		},
		"a row of another source is refused": {
			rows: rows(foreign),
			want: []broker.Reason{broker.ReasonSourceMismatch},
		},
		"a row that no record can carry is refused": {
			rows: rows(broken),
			want: []broker.Reason{broker.ReasonInvalidHeader},
		},
		"an expired row is neither sent nor refused": {
			rows: rows(expired, row("a", 9)),
			sent: []message.Position{9},
			want: []broker.Reason{"", ""},
		},
		"nothing passes the first refused row of key": {
			rows: rows(row("b", 0), large, row("b", 8), row("a", 9)),
			sent: []message.Position{0, 8},
			want: []broker.Reason{"", broker.ReasonTooLarge, "", broker.ReasonNotSent},
		},
		"where nothing is ordered the others go on": {
			rows:      rows(large, row("a", 9)),
			unordered: true,
			sent:      []message.Position{9},
			want:      []broker.Reason{broker.ReasonTooLarge, ""},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := screen(tc.rows, "shop", tc.unordered)
			var sent []message.Position
			answers := make([]broker.Confirmation, len(b.send))
			for i, m := range b.send {
				sent = append(sent, m.Position)
				answers[i] = took
			}
			b.answer(answers)
			if diff := cmp.Diff(tc.sent, sent); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
			for i, want := range tc.want {
				if b.got[i].Reason != want {
					t.Errorf("answer %d = %+v, want reason %q", i, b.got[i], want)
				}
				if want == "" && b.got[i].Outcome != broker.Confirmed {
					t.Errorf("answer %d = %+v, want confirmed", i, b.got[i])
				}
			}
		})
	}
}

func TestAMessageThatTheBrokerForgotToAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	b := screen(rows(row("a", 1), row("b", 2)), "shop", false)
	b.answer([]broker.Confirmation{took})
	if b.got[0].Outcome != broker.Confirmed || b.got[1].Outcome != broker.Unknown {
		t.Errorf("answers = %+v, want confirmed and unknown", b.got)
	}
}

func TestPlanDue(t *testing.T) {
	t.Parallel()
	head := func(n byte) shard.Head { return shard.Head{ID: message.ID{15: n}, Size: 10} }
	unsure := func(n byte) shard.Head { return shard.Head{ID: message.ID{15: n}, Size: 10, Unknowns: 1} }
	limits := Batch{MaxMessages: 8, MaxBytes: 1000} // drains in steps of 2

	cases := map[string]struct {
		gates   []shard.DueGate
		limits  Batch
		release []string
		send    []byte
	}{
		"the head of a key in retry is sent": {
			gates: []shard.DueGate{
				{Gate: "a", Heads: []shard.Head{head(1)}},
				{Gate: "b", Heads: []shard.Head{head(2)}},
			},
			send: []byte{1, 2},
		},
		"a key without rows is set free": {gates: []shard.DueGate{{Gate: "a"}}, release: []string{"a"}},
		"a key that drains sends a whole step": {
			gates: []shard.DueGate{
				{Gate: "a", Draining: true, Heads: []shard.Head{head(1), head(2)}},
			},
			send: []byte{1, 2},
		},
		"a key that drains and has less than a step is set free": {
			gates: []shard.DueGate{{Gate: "a", Draining: true, Heads: []shard.Head{head(1)}}}, release: []string{"a"},
		},
		"a message that got no answer is sent alone": {
			gates: []shard.DueGate{
				{Gate: "a", Heads: []shard.Head{unsure(1)}},
				{Gate: "b", Heads: []shard.Head{head(2)}},
			},
			send: []byte{1},
		},
		"a message that got no answer waits for its turn": {
			gates: []shard.DueGate{
				{Gate: "a", Heads: []shard.Head{head(1)}},
				{Gate: "b", Heads: []shard.Head{unsure(2)}},
			},
			send: []byte{1},
		},
		"the byte bound ends a step in the middle of a key": {
			gates:  []shard.DueGate{{Gate: "a", Draining: true, Heads: []shard.Head{head(1), head(2)}}},
			limits: Batch{MaxMessages: 8, MaxBytes: 10}, send: []byte{1},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.limits.MaxMessages == 0 {
				tc.limits = limits
			}
			p := planDue(tc.gates, tc.limits)
			var send []byte
			for _, id := range p.send {
				send = append(send, id[15])
				if p.work.gateOf[id] == "" {
					t.Errorf("nobody knows which key %v waits behind", id)
				}
			}
			if diff := cmp.Diff(tc.send, send); diff != "" {
				t.Errorf("send (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.release, p.release); diff != "" {
				t.Errorf("release (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJudgeDue(t *testing.T) {
	t.Parallel()
	type result struct {
		Done                       []message.Position
		Release, Refused, Postpone []string
		Attempts                   int
		Outage                     broker.Reason
	}
	loaded := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r1, d2, d3 := row("retry", 1), row("drain", 2), row("drain", 3)
	failed := row("retry", 5)
	failed.Failed, failed.SinceFailed = true, 10*time.Second
	silentBefore := failed
	silentBefore.Unknowns = 1
	asked := row("retry", 4)
	asked.Unknowns = 1

	cases := map[string]struct {
		rows  []shard.Row
		got   []broker.Confirmation
		works bool
		// other is when another key got through last, before the rows were loaded.
		other time.Duration
		want  result
	}{
		"a confirmed head opens its gate": {
			rows: rows(
				r1,
			),
			got:  []broker.Confirmation{took},
			want: result{Done: []message.Position{1}, Release: []string{"retry"}},
		},
		"a key that drains keeps its gate": {
			rows: rows(d2, d3), got: []broker.Confirmation{took, took}, want: result{Done: []message.Position{2, 3}},
		},
		"a refusal closes the key until it is due again": {
			rows: rows(d2, d3), got: []broker.Confirmation{refused, took},
			want: result{Refused: []string{"drain"}, Attempts: 1},
		},
		"the first failure that tells nothing counts nothing, whoever got through": {
			rows: rows(r1), got: []broker.Confirmation{unclear}, works: true, other: time.Second,
			want: result{Refused: []string{"retry"}},
		},
		"a further one counts when another key got through since": {
			rows: rows(failed), got: []broker.Confirmation{unclear}, works: true, other: 9 * time.Second,
			want: result{Refused: []string{"retry"}, Attempts: 1},
		},
		"a further one counts nothing when the others got through before": {
			rows: rows(failed), got: []broker.Confirmation{unclear}, works: true, other: 11 * time.Second,
			want: result{Refused: []string{"retry"}},
		},
		"no answer time and again counts when another key got through since": {
			rows: rows(silentBefore), got: []broker.Confirmation{silent}, works: true, other: time.Second,
			want: result{Refused: []string{"retry"}, Attempts: 1},
		},
		"no answer time and again counts nothing without a witness": {
			rows: rows(silentBefore), got: []broker.Confirmation{silent}, works: true, other: time.Minute,
			want: result{Refused: []string{"retry"}},
		},
		"no answer lets the key wait and counts nothing": {
			rows: rows(r1, d2), got: []broker.Confirmation{silent, took},
			want: result{Done: []message.Position{2}, Postpone: []string{"retry"}},
		},
		"a unit that is not there fails": {
			rows: rows(r1), got: []broker.Confirmation{down}, works: true,
			want: result{Postpone: []string{"retry"}, Outage: broker.ReasonUnreachable},
		},
		"no answer again from a unit that works is the message's": {
			rows: rows(
				asked,
			),
			got:   []broker.Confirmation{silent},
			works: true,
			want:  result{Refused: []string{"retry"}},
		},
		"a broker that is blocked is the broker's failure": {
			rows: rows(silentBefore), got: []broker.Confirmation{blocked}, works: true, other: time.Second,
			want: result{Postpone: []string{"retry"}, Outage: broker.ReasonBlocked},
		},
		"no answer again from a unit that fails is the unit's": {
			rows: rows(asked), got: []broker.Confirmation{silent},
			want: result{Postpone: []string{"retry"}, Outage: broker.ReasonNoAnswer},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := &dueWork{gateOf: make(map[message.ID]string), draining: map[string]bool{"drain": true}}
			for _, r := range tc.rows {
				work.gateOf[r.ID] = r.OrderingKey
			}
			work.loadedAt = loaded
			if tc.other == 0 {
				tc.other = time.Hour
			}
			w := seen{working: tc.works, at: loaded.Add(-tc.other)}
			v := judgeDue(&batch{rows: tc.rows, got: tc.got}, work, oneUnit(false, nil), w)
			got := result{
				Done:     at(v.done),
				Release:  v.release,
				Refused:  v.gates,
				Postpone: v.postpone,
				Outage:   v.outages[unitName].Reason,
			}
			for _, f := range v.refused {
				if f.attempt {
					got.Attempts++
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}
