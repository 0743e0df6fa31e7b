-- How long a message has been failing, as far as that counts against its budget, and since when nothing tells whose
-- fault it is.
ALTER TABLE {outbox_failing} ADD COLUMN failing_for interval NOT NULL DEFAULT '0';
ALTER TABLE {outbox_failing} ADD COLUMN ambiguous_since timestamptz;
