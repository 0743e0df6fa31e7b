-- The shop's own tables in its orders database. The outbox lies beside them.
CREATE TABLE IF NOT EXISTS customer_order (
  order_id   text PRIMARY KEY,
  customer   text NOT NULL,
  amount     bigint NOT NULL,
  state      text NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
