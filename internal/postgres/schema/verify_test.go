package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

// verifyError returns the *schema.Error of Verify, and fails the test when there is none.
func verifyError(t *testing.T, db *testkit.DB, x schema.Expected) *schema.Error {
	t.Helper()
	err := schema.Verify(t.Context(), db.Pool(), namesOf(db), x)
	var invalid *schema.Error
	if !errors.As(err, &invalid) {
		t.Fatalf("Verify() = %v, want a *schema.Error", err)
	}
	if _, reason, _ := postgres.Classify(err); reason != invalid.Reason {
		t.Errorf("Classify() = %s, want %s", reason, invalid.Reason)
	}
	if safe := postgres.SafeError(err); !strings.Contains(safe, string(invalid.Reason)) || len(safe) > 256 {
		t.Errorf("SafeError() = %q", safe)
	}
	return invalid
}

func TestVerifyNamesWhatIsWrongAndTheDDLMendsIt(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		breakIt string
		message string // part of it
		reason  postgres.Reason
		mends   bool
	}{
		"a missing table": {
			"DROP TABLE message_outbox_gate",
			"table message_outbox_gate is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing partition": {
			"DROP TABLE message_outbox_published_3",
			"partition message_outbox_published_3 is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing index": {
			"DROP INDEX message_outbox_ready",
			"index message_outbox_ready is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing column": {
			"ALTER TABLE message_outbox DROP COLUMN held CASCADE",
			"column held",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"a missing nullable column": {
			"ALTER TABLE message_inbox_key DROP COLUMN claim_until",
			"column claim_until",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a column of another type": {
			"ALTER TABLE message_inbox ALTER COLUMN event_id TYPE varchar(36)",
			"event_id (is character varying, not text)",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a shard that is not computed": {
			"ALTER TABLE message_outbox ALTER COLUMN shard DROP EXPRESSION",
			"shard (is not generated)",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"a missing writer function": {
			"DROP FUNCTION message_outbox_write",
			"function message_outbox_write is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing inbox table": {
			"DROP TABLE message_parked",
			"table message_parked is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing check of positions": {
			"ALTER TABLE message_outbox DROP CONSTRAINT message_outbox_position_check",
			"constraint message_outbox_position_check is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing check of versions": {
			"ALTER TABLE message_outbox DROP CONSTRAINT message_outbox_version_check",
			"constraint message_outbox_version_check is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing check of keys": {
			"ALTER TABLE message_outbox DROP CONSTRAINT message_outbox_key_check",
			"constraint message_outbox_key_check is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a missing check of held rows": {
			"DROP FUNCTION message_outbox_refuse_held CASCADE",
			"function message_outbox_refuse_held is missing, trigger message_outbox_held_gate is missing",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"a check of held rows that is off": {
			"ALTER TABLE message_outbox DISABLE TRIGGER message_outbox_held_gate",
			"trigger message_outbox_held_gate is disabled",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"an emptied owner": {
			"DELETE FROM message_outbox_owner",
			"has no row",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"another number of shards": {
			"UPDATE message_outbox_owner SET shards = 4",
			"made with 4 shards, not 8",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"another hash": {
			"UPDATE message_outbox_owner SET hash_vector = 1",
			"hashes keys otherwise",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"a caching sequence": {
			"ALTER SEQUENCE message_outbox_position_seq CACHE 20",
			"caches 20 positions",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"no identity": {
			"ALTER TABLE message_outbox ALTER COLUMN position DROP IDENTITY",
			"no identity column",
			postgres.ReasonSchemaInvalid,
			false,
		},
		"an older version": {
			"DELETE FROM message_schema_version WHERE component = 'outbox' AND version > 1; DROP FUNCTION message_outbox_write; " +
				"ALTER TABLE message_outbox DROP COLUMN failing_for, DROP COLUMN ambiguous_since, DROP COLUMN republish_id",
			"at version 1, version 4 or newer is needed",
			postgres.ReasonSchemaInvalid,
			true,
		},
		"nothing at all of a component": {
			"DELETE FROM message_schema_version WHERE component = 'inbox'; DROP TABLE message_inbox, message_inbox_key, message_parked, message_inbox_owner, message_skipped",
			"the inbox tables",
			postgres.ReasonSchemaMissing,
			true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			apply(t, db, both())
			runScript(t, db, tc.breakIt)

			invalid := verifyError(t, db, schema.Expected{Options: both()})
			if invalid.Reason != tc.reason || !strings.Contains(invalid.Message, tc.message) {
				t.Errorf("Verify() = %s: %s, want %s: %s", invalid.Reason, invalid.Message, tc.reason, tc.message)
			}
			if !tc.mends {
				return
			}
			runScript(t, db, invalid.DDL)
			// A dropped table takes its indexes along: they are found with it, so one round is enough.
			if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: both()}); err != nil {
				t.Errorf("after the printed statements Verify() = %v", err)
			}
		})
	}
}

func TestVerifyWithoutAnyTables(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	invalid := verifyError(t, db, schema.Expected{Options: both()})
	if invalid.Reason != postgres.ReasonSchemaMissing {
		t.Errorf("reason = %s, want SchemaMissing", invalid.Reason)
	}
	runScript(t, db, invalid.DDL)
	if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: both()}); err != nil {
		t.Errorf("after the printed statements Verify() = %v", err)
	}
	names := postgres.Names{Schema: "nowhere_" + db.Schema[:8], Outbox: "message_outbox"}
	err := schema.Verify(t.Context(), db.Pool(), names, schema.Expected{Options: both()})
	if _, reason, _ := postgres.Classify(err); reason != postgres.ReasonSchemaMissing {
		t.Errorf("Verify() of a missing schema = %v, want SchemaMissing", err)
	}
}

// Logical replication and restores copy rows but not where their sequence stands: the next position would be used already.
func TestVerifyFindsASequenceThatIsBehind(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"with ready rows": false, "with held rows only": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			apply(t, db, both())
			db.Exec(
				`INSERT INTO message_outbox (position, event_id, event_type, source, ordering_key, payload, occurred_at)
			  SELECT 500 + n, gen_random_uuid(), 't', 's', 'k' || n, '', now() FROM generate_series(1, 20) n`,
			)
			db.Exec(`UPDATE message_outbox SET held = $1`, held)
			invalid := verifyError(t, db, schema.Expected{Options: both()})
			if !strings.Contains(invalid.DDL, "setval('message_outbox_position_seq', 520)") &&
				!strings.Contains(invalid.DDL, "message_outbox_position_seq', 520)") {
				t.Errorf("DDL = %q, want the setval line to 520", invalid.DDL)
			}
			runScript(t, db, invalid.DDL)
			if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: both()}); err != nil {
				t.Errorf("after setval Verify() = %v", err)
			}
			db.Exec(`SELECT message_outbox_write('k', 'order.paid', 'x', 's')`)
			if got := testkit.Value[int64](db, "SELECT max(position) FROM message_outbox"); got != 521 {
				t.Errorf("next position = %d, want 521", got)
			}
		})
	}
}

func TestVerifyChangesNothingAndNeedsNoWriting(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	apply(t, db, both())
	err := pgx.BeginTxFunc(t.Context(), db.Pool(), pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return schema.Verify(t.Context(), tx, namesOf(db), schema.Expected{Options: both(), Role: schema.RoleRelay})
	})
	if err != nil {
		t.Errorf("Verify() in a read-only transaction = %v", err)
	}
}

// An application may insert by itself. What no relay could ever move it is told at once.
func TestTheOutboxRefusesRowsThatCouldNeverMove(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	apply(t, db, both())
	const insert = `INSERT INTO message_outbox (event_id, event_type, source, ordering_key, payload, occurred_at, `
	const values = `) VALUES (gen_random_uuid(), 't', 's', 'k', '', now(), `

	refused := map[string]string{
		"a position of 0":               insert + "position" + values + "0)",
		"a position below 0":            insert + "position" + values + "-1)",
		"a version of 0":                insert + "aggregate_version" + values + "0)",
		"a version below 0":             insert + "aggregate_version" + values + "-1)",
		"a key that fits no index":      strings.Replace(insert+"held"+values+"false)", "'k'", "repeat('k', 2049)", 1),
		"a held row without a gate":     insert + "held" + values + "true)",
		"one held row among others":     insert + "held" + values + "false), (gen_random_uuid(), 't', 's', 'k', '', now(), true)",
		"a position that is changed":    `UPDATE message_outbox SET position = -position`,
		"a version that is changed":     `UPDATE message_outbox SET aggregate_version = 0`,
		"a held row behind another key": insert + "held" + strings.Replace(values, "'k'", "'other'", 1) + "true)",
	}
	db.Exec(insert + "held" + values + "false)")
	db.Exec(`INSERT INTO message_outbox_gate SELECT shard, 'gated', 'Blocked', NULL FROM generate_series(0, 7) shard`)
	for name, sql := range refused {
		_, err := db.Pool().Exec(t.Context(), sql)
		if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || refusal.Code != "23514" {
			t.Errorf("%s: error = %v, want a check violation", name, err)
		}
	}
	// Rows of a replay come held, behind the gate that is there; in mode None the gate bears the event's id.
	db.Exec(insert + "held" + strings.Replace(values, "'k'", "'gated'", 1) + "true)")
	const id = "00000000-0000-0000-0000-000000000001"
	db.Exec(`INSERT INTO message_outbox_gate SELECT shard, $1, 'Retry', now() FROM generate_series(0, 7) shard`, id)
	db.Exec(insert + "held" + strings.Replace(values, "gen_random_uuid()", "'"+id+"'", 1) + "true)")
	db.Exec(insert + "aggregate_version, position" + values + "1, 1000)")
	if got := testkit.Value[int](db, `SELECT count(*) FROM message_outbox`); got != 4 {
		t.Errorf("%d rows, want 4", got)
	}
}
