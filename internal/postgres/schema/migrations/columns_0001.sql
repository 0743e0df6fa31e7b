-- What the relay keeps beside a table that a team already has. Nothing here alters that table.

-- Keys that wait. State is Retry or Blocked; due is NULL exactly in Blocked. While a key has a row here, none of its
-- messages is sent but the first, when it is due.
CREATE TABLE {outbox_gate} (
  shard        smallint NOT NULL,
  ordering_key text NOT NULL,
  state        text NOT NULL,
  due          timestamptz,
  PRIMARY KEY (shard, ordering_key)
);
CREATE INDEX {name:outbox_gate_due} ON {outbox_gate} (shard, due) WHERE due IS NOT NULL;

-- What is known of messages that failed and are not settled yet. ordering_key is the gate that they wait behind.
CREATE TABLE {outbox_failing} (
  event_id        uuid PRIMARY KEY,
  ordering_key    text NOT NULL,
  attempts        smallint NOT NULL DEFAULT 0,
  unknowns        smallint NOT NULL DEFAULT 0,
  first_failed_at timestamptz NOT NULL,
  last_failed_at  timestamptz NOT NULL,
  last_error_code text NOT NULL
);
CREATE INDEX {name:outbox_failing_key} ON {outbox_failing} (ordering_key);

CREATE TABLE {outbox_lease} (
  relay      text NOT NULL,
  shard      smallint NOT NULL,
  holder     uuid,
  term       bigint NOT NULL DEFAULT 0,
  held_until timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (relay, shard)
) WITH (fillfactor = 50);

CREATE TABLE {outbox_member} (
  relay      text NOT NULL,
  holder     uuid NOT NULL,
  seen_until timestamptz NOT NULL,
  PRIMARY KEY (relay, holder)
);

-- Which relay uses this table, the one source name of its rows, and what must not change under it.
CREATE TABLE {outbox_owner} (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  relay       text,
  relay_uid   text,
  source      text,
  seen_until  timestamptz,
  shards      smallint NOT NULL,
  hash_vector bigint NOT NULL
);
INSERT INTO {outbox_owner} (shards, hash_vector) VALUES ({shards}, hashtextextended('postrider' COLLATE "C", 0));
