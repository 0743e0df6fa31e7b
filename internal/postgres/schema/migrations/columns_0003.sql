-- How the relay's configuration names the table's columns, for the tools that work beside it.
ALTER TABLE {outbox_owner} ADD COLUMN mapping jsonb;

-- The dead letter that a message comes back from. Nothing is known of its failures then.
ALTER TABLE {outbox_failing} ADD COLUMN failure_id bigint;
ALTER TABLE {outbox_failing} ALTER COLUMN first_failed_at DROP NOT NULL;
ALTER TABLE {outbox_failing} ALTER COLUMN last_failed_at DROP NOT NULL;
ALTER TABLE {outbox_failing} ALTER COLUMN last_error_code DROP NOT NULL;
