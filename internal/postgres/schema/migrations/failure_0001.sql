-- Dead letters of relays and consumers that keep their tables in this schema.
CREATE TABLE {message_failure} (
  failure_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  origin            text NOT NULL,
  origin_name       text NOT NULL,
  source            text NOT NULL,
  event_id          text NOT NULL,
  event_type        text NOT NULL,
  schema_version    int,
  ordering_key      text NOT NULL,
  aggregate_version bigint,
  destination       text NOT NULL,
  position          bigint,
  expires_at        timestamptz,
  raw_key           bytea,
  raw_body          bytea,
  raw_headers       bytea,
  content_type      text,
  traceparent       text,
  occurred_at       timestamptz,
  source_position   text NOT NULL,
  payload_digest    bytea NOT NULL,
  reason            text NOT NULL,
  error_code        text,
  error_detail      text,
  attempts          int NOT NULL,
  first_failed_at   timestamptz NOT NULL,
  last_failed_at    timestamptz NOT NULL,
  generation        int NOT NULL DEFAULT 0,
  state             text NOT NULL DEFAULT 'Open'
);
CREATE UNIQUE INDEX {name:message_failure_open} ON {message_failure} (origin, origin_name, source, event_id, payload_digest)
  WHERE state IN ('Open', 'Replaying');
CREATE INDEX {name:message_failure_key} ON {message_failure} (origin, origin_name, ordering_key) WHERE state IN ('Open', 'Replaying');
