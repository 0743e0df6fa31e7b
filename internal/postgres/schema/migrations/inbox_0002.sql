-- Versions of a key that were given up on purpose: a message that comes with one later is late, not in conflict.
CREATE TABLE {message_skipped} (
  key_hash      uuid NOT NULL,
  first_version bigint NOT NULL,
  last_version  bigint NOT NULL,
  consumer_name text NOT NULL,
  reason        text NOT NULL,
  skipped_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (key_hash, first_version)
);

-- Keys that wait, for the report. Open keys, nearly all of them, are not in it.
CREATE INDEX {name:message_inbox_key_waiting} ON {message_inbox_key} (consumer_name, state) WHERE state <> 'O';
