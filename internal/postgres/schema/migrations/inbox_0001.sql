-- What a consumer remembers. Letters instead of words keep the hot rows small:
-- outcome A Applied, S Skipped, P Parked, D DeadLettered; state O Open, R Retry, G Gap, B Blocked.
CREATE TABLE {message_inbox} (
  consumer_name  text NOT NULL,
  source         text NOT NULL,
  event_id       text NOT NULL,
  payload_digest bytea NOT NULL,
  outcome        "char" NOT NULL,
  processed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer_name, source, event_id)
);
CREATE INDEX {name:message_inbox_processed_at} ON {message_inbox} USING brin (processed_at);

CREATE TABLE {message_inbox_key} (
  key_hash      uuid PRIMARY KEY,
  consumer_name text NOT NULL,
  last_version  bigint NOT NULL DEFAULT 0,
  state         "char" NOT NULL DEFAULT 'O',
  due_at        timestamptz,
  holder        uuid,
  claim_until   timestamptz,
  claim_term    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX {name:message_inbox_key_due} ON {message_inbox_key} (consumer_name, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE {message_parked} (
  sequence          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer_name     text NOT NULL,
  source            text NOT NULL,
  event_id          text NOT NULL,
  event_type        text NOT NULL,
  key_hash          uuid,
  stream            text NOT NULL,
  ordering_key      text NOT NULL,
  aggregate_version bigint,
  raw_key           bytea,
  raw_body          bytea NOT NULL,
  raw_headers       bytea NOT NULL,
  payload_digest    bytea NOT NULL,
  source_position   text NOT NULL,
  parked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts          int NOT NULL DEFAULT 0,
  first_failed_at   timestamptz,
  last_failed_at    timestamptz,
  error_code        text,
  failure_id        bigint,
  due_at            timestamptz,
  UNIQUE (consumer_name, source, event_id)
);
CREATE INDEX {name:message_parked_key} ON {message_parked} (key_hash, aggregate_version, sequence) WHERE key_hash IS NOT NULL;
CREATE INDEX {name:message_parked_due} ON {message_parked} (consumer_name, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE {message_inbox_owner} (
  consumer_name     text PRIMARY KEY,
  resource          text NOT NULL,
  resource_uid      text NOT NULL,
  seen_until        timestamptz NOT NULL,
  stream            text,
  finished_sequence bigint
);
