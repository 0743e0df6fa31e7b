-- The billing service's own tables: what it is owed, and every step that led there.
CREATE TABLE IF NOT EXISTS invoice (
  order_id text PRIMARY KEY,
  state    text NOT NULL,
  amount   bigint NOT NULL,
  version  bigint NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS ledger (
  entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id   text NOT NULL,
  event_id   text NOT NULL,
  event_type text NOT NULL,
  amount     bigint NOT NULL,
  version    bigint NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS ledger_order ON ledger (order_id, entry);
-- What the consumer's statement does, as the sample's user.
GRANT SELECT, INSERT, UPDATE ON invoice, ledger TO billing_consumer;
