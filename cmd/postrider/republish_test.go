package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/test/testkit"
)

// withArchive makes an outbox with three published messages of two keys, the second of which has a dead letter.
func withArchive(t *testing.T) *testkit.DB {
	t.Helper()
	db := withDeadLetter(t)
	db.Exec(`INSERT INTO message_outbox_published (position, shard, event_id, event_type, schema_version, source,
		ordering_key, aggregate_version, destination, content_type, payload, occurred_at, created_at, attempts, unknowns,
		published_at, broker_position, slot)
		SELECT n, 0, ('01890000-0000-7000-8000-00000000010' || n)::uuid, 'order.paid', 1, 'shop', key, n, destination,
		'text/plain', 'canary-body', now(), now(), 0, 0, '2026-03-01T10:00:00Z'::timestamptz + n * interval '1 min',
		'ORDERS@' || n, 0
		FROM (VALUES (1, 'order-7', ''), (2, 'order-7', 'eu'), (3, 'order-1', '')) r(n, key, destination)`)
	db.Exec(`UPDATE message_outbox_ring SET since = '2026-03-01T10:00:00Z' WHERE current`)
	return db
}

func TestADryRunListsArchivedMessagesWithTheirBrokerPositions(t *testing.T) {
	t.Parallel()
	db := withArchive(t)
	cases := map[string]struct {
		words []string
		want  []string
		not   []string
	}{
		"all of it": {
			nil, []string{"ORDERS@1", "ORDERS@2", "ORDERS@3", "3 messages chosen", "order.paid", `"order-7"`}, nil,
		},
		"a time": {
			[]string{"--from", "2026-03-01T10:02:00Z", "--to", "2026-03-01T10:03:00Z"},
			[]string{"ORDERS@2", "1 message chosen"},
			[]string{"ORDERS@1", "ORDERS@3"},
		},
		"an event": {
			[]string{"--event", "01890000-0000-7000-8000-000000000103"}, []string{"ORDERS@3"}, []string{"ORDERS@1"},
		},
		"a key and a destination": {
			[]string{"--key", "order-7", "--destination", "eu"}, []string{"ORDERS@2"}, []string{"ORDERS@1", "ORDERS@3"},
		},
		"the first of many": {[]string{"--limit", "1"}, []string{"more than 1 message chosen"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := deskCall(t, db, append([]string{"republish", "--dry-run"}, tc.words...)...)
			if code != 0 || stderr != "" || strings.Contains(stdout, "canary") {
				t.Fatalf("republish --dry-run = %d, %q, %q", code, stdout, stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("it does not say %q:\n%s", want, stdout)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(stdout, not) {
					t.Errorf("it says %q:\n%s", not, stdout)
				}
			}
			if n := testkit.Value[int64](db, `SELECT count(*) FROM message_outbox_published`); n != 3 {
				t.Errorf("%d messages are in the archive after a dry run", n)
			}
		})
	}
}

func TestRepublishedMessagesAreCountedAndAudited(t *testing.T) {
	t.Parallel()
	db := withArchive(t)
	code, stdout, stderr := deskCall(t, db,
		"republish", "--from", "2026-03-01T10:00:00Z", "--why", "a lost disk", "--by", "ada")
	const want = "OK: 2 messages on the way again\n" +
		"Note: 1 message left in the archive: an open dead letter blocks the key; decide about it first\n"
	if code != 0 || stdout != want || stderr != "" {
		t.Fatalf("republish = %d, %q, %q", code, stdout, stderr)
	}
	if got := testkit.Value[string](
		db,
		`SELECT string_agg(concat_ws(' ', position, held, republish_id IS NOT NULL), ', '
		ORDER BY position) FROM message_outbox WHERE ordering_key = 'order-7'`,
	); got != "1 t t, 2 t t" {
		t.Errorf("rows = %q", got)
	}
	if got := testkit.Value[string](
		db,
		`SELECT string_agg(concat_ws(' ', actor, action, why, origin_name, event_id), ', '
		ORDER BY audit_id) FROM message_audit`,
	); got !=
		"ada Republish a lost disk shop/orders 01890000-0000-7000-8000-000000000101, "+
			"ada Republish a lost disk shop/orders 01890000-0000-7000-8000-000000000102" {
		t.Errorf("audit = %q", got)
	}
}

func TestRepublishNeedsAReasonAndAChoice(t *testing.T) {
	t.Parallel()
	db := withArchive(t)
	for name, words := range map[string][]string{
		"no reason":            {"--key", "order-7"},
		"no choice":            {"--why", "w"},
		"more than allowed":    {"--why", "w", "--key", "order-7", "--limit", "1"},
		"no limit":             {"--why", "w", "--key", "order-7", "--limit", "0"},
		"no time":              {"--dry-run", "--from", "yesterday"},
		"no id":                {"--dry-run", "--event", "17"},
		"a table without one":  {"--dry-run", "--table", "other"},
		"an argument too many": {"now"},
	} {
		if code, stdout, stderr := deskCall(t, db, append([]string{"republish"}, words...)...); code != 2 ||
			stdout != "" || stderr == "" {
			t.Errorf("%s: republish %v = %d, %q, %q, want exit code 2 and a reason", name, words, code, stdout, stderr)
		}
	}
	if n := testkit.Value[int64](db, `SELECT count(*) FROM message_outbox_published`); n != 3 {
		t.Errorf("%d messages are in the archive after refusals, want all 3", n)
	}
}
