-- Whether later messages of the key wait until somebody decides about the dead letter; a relay's reads it. Of a relay's
-- dead letter, source_position names the outbox table and the row's position ("message_outbox@17"), and raw_headers is
-- the row's headers as JSON text.
ALTER TABLE {message_failure} ADD COLUMN blocks_key boolean NOT NULL DEFAULT false;

-- What people decided about messages, and why. Nothing deletes from it.
CREATE TABLE {message_audit} (
  audit_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at            timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor         text NOT NULL,
  login         text NOT NULL DEFAULT session_user,
  action        text NOT NULL,
  failure_id    bigint,
  origin        text NOT NULL,
  origin_name   text NOT NULL,
  event_id      text NOT NULL,
  why           text NOT NULL,
  digest_before bytea,
  digest_after  bytea
);
CREATE INDEX {name:message_audit_failure} ON {message_audit} (failure_id);
