package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/testkit"
)

func TestAnOutboxTellsOfCommitsWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	o := only(schema.Outbox)
	apply(t, db, o)
	missing := func(want string) (ddl string) {
		t.Helper()
		invalid, ok := errors.AsType[*schema.Error](schema.VerifyNotify(t.Context(), db.Pool(), namesOf(db)))
		if !ok || invalid.Reason != postgres.ReasonSchemaInvalid || !strings.Contains(invalid.Message, want) {
			t.Fatalf("VerifyNotify() = %v, want %q", invalid, want)
		}
		return invalid.DDL
	}
	there := func() {
		t.Helper()
		if err := schema.VerifyNotify(t.Context(), db.Pool(), namesOf(db)); err != nil {
			t.Fatalf("VerifyNotify() = %v", err)
		}
	}
	missing("trigger message_outbox_notify is missing")
	if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: o}); err != nil {
		t.Errorf("nobody asks for it, and Verify() = %v", err)
	}

	o.Notify = true
	if invalid := verifyError(t, db, schema.Expected{Options: o}); !strings.Contains(invalid.Message, "notify") {
		t.Errorf("Verify() = %s", invalid.Message)
	}
	apply(t, db, o)
	there()
	apply(t, db, o)
	if err := schema.Verify(t.Context(), db.Pool(), namesOf(db), schema.Expected{Options: o}); err != nil {
		t.Errorf("Verify() = %v", err)
	}

	db.Exec("ALTER TABLE message_outbox DISABLE TRIGGER message_outbox_notify")
	runScript(t, db, missing("trigger message_outbox_notify is disabled"))
	there()
	db.Exec("DROP TRIGGER message_outbox_notify ON message_outbox")
	runScript(t, db, missing("trigger message_outbox_notify is missing"))
	there()
}
