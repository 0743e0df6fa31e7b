package outboxdb

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/test/testkit"
)

// headersOf sets the headers of a row to what an expression says.
func (o *outbox) headersOf(r shard.Row, expression string) {
	o.t.Helper()
	o.Exec(`UPDATE message_outbox SET payload = '', headers = `+expression+` WHERE event_id = $1`, [16]byte(r.ID))
}

const (
	// noise is 30 KiB of headers that do not compress, pattern 30 KiB that do.
	noise = `jsonb_build_object('a', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 960)))`

	pattern = `jsonb_build_object('a', repeat('pattern-', 3840))`
)

func bytesOf(rows []shard.Row) (sum int64) {
	for i := range rows {
		sum += rows[i].Bytes()
	}
	return sum
}

// F: headers were read whole and counted for nothing, 500 rows of them at once.
func TestHeadersCountAgainstTheByteBoundOfABatch(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]string{"as they are": noise, "compressed": pattern} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder()
			var rows []shard.Row
			for range 8 {
				rows = append(rows, o.put("k"))
				o.headersOf(rows[len(rows)-1], headers)
			}
			w := wide()
			w.MaxBytes = 100_000 // the fourth row reaches it

			c := claimed(t, s, w)
			fetched, cut, err := s.Fetch(t.Context(), l, positions(rows...), w.MaxBytes)

			for what, got := range map[string][]shard.Row{"Claim()": c.Rows, "Fetch()": fetched} {
				if len(got) != 4 || bytesOf(got[:3]) >= w.MaxBytes || bytesOf(got) < w.MaxBytes {
					t.Errorf(
						"%s = %d rows of %d bytes, want those that reach %d",
						what,
						len(got),
						bytesOf(got),
						w.MaxBytes,
					)
				}
				if n := len(got[0].Headers["a"]); n != 30<<10 || got[0].Defect != "" {
					t.Errorf("%s gives %d bytes of headers, defect %q; want them whole", what, n, got[0].Defect)
				}
			}
			if err != nil || !cut || !c.Cut {
				t.Errorf("cut = %v, %v, %v; want that there is more", c.Cut, cut, err)
			}
			w.MaxBytes = bytesOf(c.Rows[:3])
			if c = claimed(t, s, w); len(c.Rows) != 3 || !c.Cut {
				t.Errorf("%d rows, cut %v; want the three that reach the bound exactly, cut", len(c.Rows), c.Cut)
			}
		})
	}
}

// What waits is counted in the same way: a look at keys that are due plans by it what is loaded at once.
func TestHeadersCountInWhatWaits(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	r := o.put("k")
	o.headersOf(r, pattern)
	if err := s.Refuse(t.Context(), l, []shard.Refusal{refusal(r, 1)}, nil); err != nil {
		t.Fatal(err)
	}
	due, err := s.Due(t.Context(), l, 10, 10)
	if err != nil || len(due) != 1 || len(due[0].Heads) != 1 {
		t.Fatalf("Due() = %+v, %v, want one head", due, err)
	}
	rows, err := s.Load(t.Context(), l, []message.ID{r.ID}, 1<<20)
	if err != nil || len(rows) != 1 || len(rows[0].Headers["a"]) != 30<<10 {
		t.Fatalf("Load() = %d rows, %v, want the row", len(rows), err)
	}
	if size := due[0].Heads[0].Size; int64(size) != rows[0].Bytes() || size < 30<<10 {
		t.Errorf("the head counts %d bytes, the row %d; want the headers in both", size, rows[0].Bytes())
	}
}

// G8: headers of any size are their row's own failure and never loaded, nor are numbers that only few bytes stand for.
func TestHeadersOfAnySizeAreNotLoaded(t *testing.T) {
	t.Parallel()
	const mega = 1 << 20
	for name, tc := range map[string]struct{ headers, defect string }{
		"as they are":       {`jsonb_build_object('a', repeat('x', 300000) || md5(random()::text))`, defectTooLarge},
		"compressed":        {`jsonb_build_object('a', repeat('x', 40000000))`, defectTooLarge},
		"compressed to few": {`jsonb_build_object('a', repeat('x', 3000000))`, defectTooLarge},
		"numbers of many digits": {
			`(SELECT jsonb_object_agg('n' || i, '1e131000'::numeric) FROM generate_series(1, 50) i)`, defectHeaders,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			if name == "as they are" {
				o.Exec(`ALTER TABLE message_outbox ALTER COLUMN headers SET STORAGE EXTERNAL`)
			}
			s, l := o.holder()
			before, huge, after := o.put("a"), o.put("b"), o.put("c")
			o.headersOf(huge, tc.headers)
			w := wide()
			w.MaxBytes = 64 * mega
			read := map[string][]shard.Row{"Claim()": claimed(t, s, w).Rows}
			var err error
			at := positions(before, huge, after)
			if read["Fetch()"], _, err = s.Fetch(t.Context(), l, at, w.MaxBytes); err != nil {
				t.Fatal(err)
			}
			for what, got := range read {
				if len(got) != 3 {
					t.Fatalf("%s = %d rows, want all", what, len(got))
				}
				if got[0].Defect != "" || got[1].Defect != tc.defect || got[1].Headers != nil || got[2].Defect != "" {
					t.Errorf("%s marks %q %q %q, want the one in the middle alone", what, got[0].Defect, got[1].Defect,
						got[2].Defect)
				}
			}
			if tc.defect == defectTooLarge && read["Claim()"][1].HeadersSize <= mapped.HeadersBound {
				t.Errorf("the headers count %d bytes, want what they are", read["Claim()"][1].HeadersSize)
			}
		})
	}
}

// G8: a column of type json takes what no jsonb can hold. One such row kept its shard from being read.
func TestHeadersThatCannotBeReadAreTheFailureOfTheirRow(t *testing.T) {
	t.Parallel()
	table := testkit.ClassicTable()
	table.DDL += `ALTER TABLE outbox_event ADD COLUMN headers json;`
	table.Change = func(c *config.Columns) { c.Headers = "headers" }
	cases := map[string]struct{ headers, value, defect string }{
		"no character":           {`{"a": "\u0000"}`, "", defectHeaders},
		"no character in a name": {`{"\u0000": "a"}`, "", defectHeaders},
		"after a backslash":      {`{"a": "\\\u0000"}`, "", defectHeaders},
		"the first of a pair":    {`{"a": "\ud83d"}`, "", defectHeaders},
		"the second of a pair":   {`{"a": "\uDE00\ud83d"}`, "", defectHeaders},
		"a number too large":     {`{"a": 1e200000}`, "", defectHeaders},
		"one with a sign":        {`{"b": "\"", "a": 1.5E+200000}`, "", defectHeaders},
		"a pair":                 {`{"a": "\ud83d\uDE00"}`, "\U0001f600", ""},
		"a backslash":            {`{"a": "\\u0000"}`, `\u0000`, ""},
		"a text like a number":   {`{"a": "\"1e200000"}`, `"1e200000`, ""},
		"a number":               {`{"a": 1e20}`, "100000000000000000000", ""},
	}
	o, s := newTeamOutbox(t, table)
	for name, tc := range cases {
		o.Exec(`INSERT INTO outbox_event (event_id, aggregate_id, aggregate_version, topic, payload, headers)
			VALUES (gen_random_uuid(), $1, 1, 'orders', '{}', $2)`, name, tc.headers)
	}
	rows := claimed(t, s, wide()).Rows
	if len(rows) != len(cases) {
		t.Errorf("Claim() = %d rows, want all %d", len(rows), len(cases))
	}
	for i := range rows {
		r := &rows[i]
		if want := cases[r.OrderingKey]; r.Defect != want.defect || r.Headers["a"] != want.value {
			t.Errorf("%s: %q, defect %q; want %q, %q", r.OrderingKey, r.Headers, r.Defect, want.value, want.defect)
		}
	}
}

// G8: so are texts, and of them the beginning is enough to be refused by.
func TestTextsOfAnyLengthAreNotLoadedWhole(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"event_type", "source", "destination", "content_type", "traceparent"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			s, l := o.holder()
			huge, next := o.put("a"), o.put("b")
			o.Exec(`UPDATE message_outbox SET `+column+` = repeat('x', 5000000) WHERE event_id = $1`, [16]byte(huge.ID))
			rows := claimed(t, s, wide()).Rows
			if err := s.Refuse(t.Context(), l, []shard.Refusal{refusal(huge, 1)}, nil); err != nil {
				t.Fatal(err)
			}
			held, err := s.Load(t.Context(), l, ids(huge), 1<<20)
			if err != nil || len(rows) != 2 || len(held) != 1 {
				t.Fatalf("Claim() = %d rows, Load() = %d, %v; want two and one", len(rows), len(held), err)
			}
			for _, r := range []shard.Row{rows[0], held[0]} {
				read := r.Type + r.Source + r.Destination + r.ContentType + r.Traceparent
				if r.Defect != defectTooLarge || len(read) > 2*mapped.TextBound {
					t.Errorf(
						"defect %q with %d bytes of texts, want %s and the beginning",
						r.Defect,
						len(read),
						defectTooLarge,
					)
				}
			}
			if rows[1].Defect != "" || rows[1].ID != next.ID {
				t.Errorf("the row behind it: %+v, want it as it is", rows[1])
			}
			o.bury(s, l, huge)
			letters, err := NewDesk(o.Pool(), o.names, patience).List(t.Context(), Filter{Limit: 10})
			if err != nil || len(letters) != 1 {
				t.Fatalf("List() = %d dead letters, %v, want one", len(letters), err)
			}
			d := letters[0]
			if n := len(d.Type + d.Source + d.Destination + d.ContentType); n > 2*mapped.TextBound {
				t.Errorf("the dead letter is listed with %d bytes of texts, want the beginning", n)
			}
		})
	}
}

// What no relay could load is kept whole as a dead letter, and replayed it fails again.
func TestADeadLetterKeepsHeadersOfAnySize(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, l := o.holder()
	dead := o.put("k")
	o.headersOf(dead, `jsonb_build_object('a', repeat('x', 100000000))`)

	o.bury(s, l, dead)

	desk := NewDesk(o.Pool(), o.names, patience)
	letters, err := desk.List(t.Context(), Filter{Limit: 10})
	if err != nil || len(letters) != 1 {
		t.Fatalf("List() = %+v, %v, want one", letters, err)
	}
	kept := testkit.Value[int64](o.DB, `SELECT octet_length(raw_headers)::bigint FROM message_failure`)
	if want := int64(100_000_000 + len(`{"a": ""}`)); kept != want {
		t.Errorf("%d bytes of headers are kept, want %d", kept, want)
	}
	if err := desk.Replay(t.Context(), letters[0].ID, Decision{Actor: "a", Why: "w"}, false); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Load(t.Context(), lease.Lease{Shard: 0}, []message.ID{dead.ID}, 1<<20)
	if err != nil || len(rows) != 1 || rows[0].Defect != defectTooLarge || rows[0].Headers != nil {
		t.Errorf("Load() = %+v, %v, want the row without its headers", rows, err)
	}
}

// The mutation: without a bound the statement brings the headers whole.
func TestMutationHeadersAreLoadedWhole(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	s, _ := o.holder()
	o.headersOf(o.put("a"), `jsonb_build_object('a', repeat('x', 3000000))`)
	s.sql.claim = replace(t, s.sql.claim, readHeaders("y"), "convert_to(y.headers::text, 'UTF8')")
	if got := claimed(t, s, wide()).Rows[0].Headers["a"]; got != strings.Repeat("x", 3_000_000) {
		t.Errorf("%d bytes: the test above would notice nothing", len(got))
	}
}
