package verify_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

func TestPrint(t *testing.T) {
	t.Parallel()

	kept := verify.Check{Promise: "G1", Title: "no row waits", Result: verify.Kept, Looked: 10}
	broken := verify.Check{
		Promise: "G4", Title: "keys are in order", Result: verify.Broken, Looked: 10, Broken: 2, First: "event 7",
	}
	left := verify.Check{Promise: "G5", Title: "effects", Result: verify.NotChecked, Note: "none was named"}
	cases := map[string]struct {
		checks []verify.Check
		wantOK bool
		want   string
	}{
		"promises that were kept": {
			checks: []verify.Check{kept, left}, wantOK: true,
			want: `relay shop/orders
          7   published
  ok  G1  10  no row waits
  -   G5      effects: not checked, none was named
OK: 1 promises kept; 7 messages published, 0 applied
`,
		},
		"a broken promise shows its first offender": {
			checks: []verify.Check{kept, broken},
			want: `relay shop/orders
              7        published
  ok      G1  10       no row waits
  BROKEN  G4  2 of 10  keys are in order; first: event 7
NOT OK: 1 of 2 promises broken
`,
		},
		"nothing that could be checked is not OK": {
			checks: []verify.Check{left},
			want: `relay shop/orders
         7  published
  -  G5     effects: not checked, none was named
NOT OK: nothing could be checked
`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := verify.Report{Sections: []verify.Section{
				{
					Name:   "relay shop/orders",
					Facts:  []verify.Fact{{Name: verify.FactPublished, Count: 7}},
					Checks: tc.checks,
				},
			}}
			var out bytes.Buffer

			if err := report.Print(&out); err != nil {
				t.Fatal(err)
			}

			if report.OK() != tc.wantOK {
				t.Errorf("OK() = %v, want %v", report.OK(), tc.wantOK)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseEffects(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		text string
		want verify.Effects
		err  error
	}{
		"three parts": {
			text: "ledger:order_id:version",
			want: verify.Effects{Table: "ledger", Key: "order_id", Version: "version"},
		},
		"four parts and a schema": {
			text: "billing.ledger:order_id:version:entry",
			want: verify.Effects{Table: "billing.ledger", Key: "order_id", Version: "version", Order: "entry"},
		},
		"two parts are too few":           {text: "ledger:order_id", err: verify.ErrEffects},
		"five parts are too many":         {text: "a:b:c:d:e", err: verify.ErrEffects},
		"an empty column is refused":      {text: "ledger::version", err: verify.ErrEffects},
		"a quote is refused":              {text: `ledger:order"id:version`, err: verify.ErrEffects},
		"a column with a dot is refused":  {text: "ledger:l.order_id:version", err: verify.ErrEffects},
		"a table of databases is refused": {text: "db.billing.ledger:order_id:version", err: verify.ErrEffects},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := verify.ParseEffects(tc.text)
			if !errors.Is(err, tc.err) {
				t.Fatalf("ParseEffects() error = %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseEffects() (-want +got):\n%s", diff)
			}
		})
	}
}

// What cannot be checked is named as such and never counted as kept.
func TestWhatCannotBeCheckedIsSaid(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(t *testing.T, in *verify.Input, w *world)
		want   map[string]string // title to note
	}{
		"no effects table": {
			change: func(_ *testing.T, in *verify.Input, _ *world) { in.Consumers[0].Effects = nil },
			want:   map[string]string{"effects are in order per key": "no effects table was named (--effects)"},
		},
		"no order column": {
			change: func(_ *testing.T, in *verify.Input, _ *world) { in.Consumers[0].Effects[0].Order = "" },
			want: map[string]string{
				"the effects of a key in ledger are in order of their versions": "no order column was named",
			},
		},
		"no durable consumer": {
			change: func(_ *testing.T, in *verify.Input, w *world) {
				in.Consumers[0].Durable = ""
				in.Consumers[0].FilterSubjects = []string{w.stream.Subject("orders")}
			},
			want: map[string]string{
				"everything acknowledged has an outcome or a dead letter": "no durable consumer was named",
			},
		},
		"no stream": {
			change: func(_ *testing.T, in *verify.Input, _ *world) {
				in.Consumers = nil
				in.Relays[0].Stream = verify.Stream{}
			},
			want: allOfStream("no stream was given"),
		},
		"a stream that forgets what was consumed": {
			change: func(t *testing.T, in *verify.Input, _ *world) {
				t.Helper()
				broker := testkit.NATS(t)
				queue := broker.Stream(jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy})
				in.Consumers = nil
				in.Relays[0].Stream = verify.Stream{JS: broker.JetStream(), Name: queue.Name}
			},
			want: allOfStream("drops messages once they are consumed"),
		},
		"a stream that keeps only the newest of a subject": {
			change: func(t *testing.T, in *verify.Input, _ *world) {
				t.Helper()
				broker := testkit.NATS(t)
				newest := broker.Stream(jetstream.StreamConfig{MaxMsgsPerSubject: 1})
				in.Consumers = nil
				in.Relays[0].Stream = verify.Stream{JS: broker.JetStream(), Name: newest.Name}
			},
			want: allOfStream("keeps only the newest messages of a subject"),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			in := w.input()
			tc.change(t, &in, w)

			report, err := verify.Run(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}

			if !report.OK() {
				t.Error("the report is not OK")
			}
			for _, s := range report.Sections {
				for _, c := range s.Checks {
					note, expected := tc.want[c.Title]
					if (c.Result == verify.NotChecked) != expected || !strings.Contains(c.Note, note) {
						t.Errorf("%s: %v, note %q, want one with %q", c.Title, c.Result, c.Note, note)
					}
					delete(tc.want, c.Title)
				}
			}
			if len(tc.want) > 0 {
				t.Errorf("not in the report: %v", tc.want)
			}
		})
	}
}

func allOfStream(note string) map[string]string {
	return map[string]string{
		"every published row is in the stream":                         note,
		"every published row is where its broker position says":        note,
		"key, type, version and bytes arrived as they were written":    note,
		"duplicates carry the same key and bytes":                      note,
		"the first deliveries of a key are in order of their versions": note,
		"nothing is in the stream without a committed row":             note,
		"no published row lies beyond the end of the stream":           note,
		"no published row lies below the first message of the stream":  note,
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(in *verify.Input, w *world)
		want   string
	}{
		"a stream that does not exist": {
			change: func(in *verify.Input, _ *world) { in.Relays[0].Stream.Name = "nowhere" },
			want:   "verify relay shop/orders: look at stream nowhere: ",
		},
		"a durable consumer that does not exist": {
			change: func(in *verify.Input, _ *world) { in.Consumers[0].Durable = "nobody" },
			want:   "verify consumer shop/billing: look at consumer nobody of stream ",
		},
		"an outbox table that does not exist": {
			change: func(in *verify.Input, w *world) {
				in.Relays[0].Tables = postgres.Names{Schema: w.outbox.Schema, Outbox: "nothing"}
			},
			want: "verify relay shop/orders: count rows: ",
		},
		"an effects column that does not exist": {
			change: func(in *verify.Input, _ *world) { in.Consumers[0].Effects[0].Order = "nothing" },
			want:   "verify consumer shop/billing: effects table ledger: ",
		},
		"a role that may not make temporary tables": {
			change: func(in *verify.Input, w *world) { in.Relays[0].Pool = withoutTemporaryTables(w.t) },
			want:   "verify relay shop/orders: make a temporary table (GRANT TEMPORARY ON DATABASE … allows it): ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.subscribe()
			in := w.input()
			tc.change(&in, w)

			_, err := verify.Run(t.Context(), in)

			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("Run() error = %v, want one that starts with %q", err, tc.want)
			}
		})
	}
}
