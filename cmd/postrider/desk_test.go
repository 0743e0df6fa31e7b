package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/test/testkit"
)

// deskCall runs a command at the outbox of a database.
func deskCall(t *testing.T, db *testkit.DB, words ...string) (code int, stdout, stderr string) {
	t.Helper()
	return call(t, append(words, at(db)...)...)
}

// withDeadLetter makes an outbox that a relay has used, with a blocked key and one message behind its dead letter.
func withDeadLetter(t *testing.T) *testkit.DB {
	t.Helper()
	db := testkit.Postgres(t)
	if code, _, stderr := schemaCall(t, db, "apply", "outbox", "--shards", "1"); code != 0 {
		t.Fatalf("apply = %d, %s", code, stderr)
	}
	db.Exec(`UPDATE message_outbox_owner SET relay = 'shop/orders', source = 'shop'`)
	db.Exec(`INSERT INTO message_outbox_lease (relay, shard) VALUES ('shop/orders', 0)`)
	db.Exec(`INSERT INTO message_outbox_gate VALUES (0, 'order-1', 'Blocked', NULL)`)
	db.Exec(`INSERT INTO message_outbox (event_id, event_type, source, ordering_key, aggregate_version, payload,
		occurred_at, held, position) VALUES (gen_random_uuid(), 'order.paid', 'shop', 'order-1', 2, '{}', now(), true, 18)`)
	db.Exec(
		`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, schema_version, ordering_key,
		aggregate_version, destination, position, raw_body, raw_headers, content_type, occurred_at, source_position,
		payload_digest, reason, error_detail, attempts, first_failed_at, last_failed_at, blocks_key)
		VALUES ('Relay', 'shop/orders', 'shop', '01890000-0000-7000-8000-000000000001', 'order.paid', 1, 'order-1', 1, '',
		17, 'canary-body', '{"tenant": "canary-header"}', 'text/plain', now(), 'message_outbox@17', '\x01', 'TooLarge',
		'larger than 1 MiB', 10, now(), now(), true)`,
	)
	return db
}

func TestDeadLettersAreListedAndShownWithoutTheirPayload(t *testing.T) {
	t.Parallel()
	db := withDeadLetter(t)

	for _, words := range [][]string{
		{"dead-letters", "list"}, {"dead-letters", "show", "1"}, {"status"}, {"dead-letters", "list", "--all"},
	} {
		code, stdout, stderr := deskCall(t, db, words...)
		if code != 0 || stderr != "" || strings.Contains(stdout, "canary") {
			t.Errorf("%v = %d, %q, %q: want no payload and no header", words, code, stdout, stderr)
		}
		for _, want := range []string{"order-1", "TooLarge"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%v does not name %s:\n%s", words, want, stdout)
			}
		}
	}
	code, stdout, _ := deskCall(t, db, "dead-letters", "show", "1", "--payload")
	if code != 0 || !strings.Contains(stdout, "canary-body") || !strings.Contains(stdout, "canary-header") {
		t.Errorf("show --payload = %d, %q", code, stdout)
	}
}

func TestStatusShowsBacklogDeadLettersAndBlockedKeys(t *testing.T) {
	t.Parallel()
	db := withDeadLetter(t)
	code, stdout, stderr := deskCall(t, db, "status")
	for _, want := range []string{
		"message_outbox, relay shop/orders", "0 of 1 shards held", "1 message behind 1 key",
		"1 open, oldest", "1 TooLarge", `"order-1"`,
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status = %d, %q, without %q:\n%s", code, stderr, want, stdout)
		}
	}
}

func TestADecisionNeedsAReasonAndIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	db := withDeadLetter(t)

	if code, _, stderr := deskCall(
		t,
		db,
		"dead-letters",
		"discard",
		"1",
	); code != 2 ||
		!strings.Contains(stderr, "why") {
		t.Errorf("discard without a reason = %d, %q", code, stderr)
	}
	code, stdout, stderr := deskCall(t, db, "dead-letters", "discard", "1", "--why", "a duplicate order", "--by", "ada")
	if code != 0 || stdout != "OK: dead letter 1 is discarded\n" {
		t.Fatalf("discard = %d, %q, %q", code, stdout, stderr)
	}
	code, _, stderr = deskCall(t, db, "dead-letters", "replay", "1", "--why", "no")
	if code != 2 || !strings.Contains(stderr, "dead letter 1 is not open") {
		t.Errorf("a second decision = %d, %q", code, stderr)
	}
	got := testkit.Value[string](db, `SELECT concat_ws(' ', actor, action, why, failure_id, origin_name)
		FROM message_audit`)
	if got != "ada Discard a duplicate order 1 shop/orders" {
		t.Errorf("audit = %q", got)
	}
	marker := testkit.Value[string](
		db,
		`SELECT concat_ws(' ', event_type, aggregate_version, held, octet_length(payload))
		FROM message_outbox WHERE position = 17`,
	)
	if marker != "postrider.skipped 1 t 0" {
		t.Errorf("marker = %q", marker)
	}
	if state := testkit.Value[string](db, `SELECT state FROM message_outbox_gate`); state != "Retry" {
		t.Errorf("gate = %s, want one that is looked at", state)
	}
}

func TestDecisionsAboutWhatIsNotThereAreTheCallersMistake(t *testing.T) {
	t.Parallel()
	db := withDeadLetter(t)
	for name, words := range map[string][]string{
		"another id":           {"dead-letters", "show", "99"},
		"no id":                {"dead-letters", "show", "x"},
		"an unknown event":     {"dead-letters", "move", "01890000-0000-7000-8000-0000000000ff", "--why", "w"},
		"no event id":          {"dead-letters", "move", "17", "--why", "w"},
		"another outbox":       {"dead-letters", "discard", "1", "--why", "w", "--table", "other"},
		"no such table name":   {"status", "--table", "a b"},
		"an argument too many": {"status", "now"},
	} {
		if code, stdout, stderr := deskCall(t, db, words...); code != 2 || stdout != "" || stderr == "" {
			t.Errorf("%s: %v = %d, %q, %q, want exit code 2 and a reason", name, words, code, stdout, stderr)
		}
	}
}

// A consumer's database may have no outbox.
func TestDeadLettersOfAConsumerAreShownAndNotDecidedAbout(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if code, _, stderr := schemaCall(t, db, "apply", "inbox"); code != 0 {
		t.Fatalf("apply = %d, %s", code, stderr)
	}
	db.Exec(
		`INSERT INTO message_failure (origin, origin_name, source, event_id, event_type, schema_version, ordering_key,
		aggregate_version, destination, raw_body, raw_headers, source_position, payload_digest, reason, attempts,
		first_failed_at, last_failed_at, blocks_key)
		VALUES ('Consumer', 'shop/billing', 'shop', '01890000-0000-7000-8000-000000000001', 'order.paid', 1, 'order-1', 1,
		'', 'canary', '{}', 'ORDERS@17', '\x01', 'Unmatched', 1, now(), now(), true)`,
	)
	for _, words := range [][]string{{"dead-letters", "list", "--origin", "Consumer"}, {"dead-letters", "show", "1"}} {
		code, stdout, stderr := deskCall(t, db, words...)
		if code != 0 || !strings.Contains(stdout, "shop/billing") || !strings.Contains(stdout, "Unmatched") {
			t.Errorf("%v = %d, %q, %q: want the dead letter", words, code, stdout, stderr)
		}
	}
	for _, verb := range []string{"replay", "discard"} {
		code, _, stderr := deskCall(t, db, "dead-letters", verb, "1", "--why", "mended")
		if code != 2 || !strings.Contains(stderr, "a consumer's") {
			t.Errorf("%s = %d, %q: want it refused", verb, code, stderr)
		}
	}
	if got := testkit.Value[string](db, `SELECT state FROM message_failure`); got != "Open" {
		t.Errorf("the dead letter is %s", got)
	}
}
