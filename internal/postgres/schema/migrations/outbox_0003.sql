-- How long a message has been failing, as far as that counts against its budget: not while its unit was down. And since
-- when it has been failing in a way that tells nobody whose fault it is.
ALTER TABLE {outbox} ADD COLUMN failing_for interval NOT NULL DEFAULT '0';
ALTER TABLE {outbox} ADD COLUMN ambiguous_since timestamptz;
CREATE INDEX {name:outbox_ambiguous} ON {outbox} (shard, ambiguous_since) WHERE ambiguous_since IS NOT NULL;
