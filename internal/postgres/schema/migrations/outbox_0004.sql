-- The decision (message_audit) by which a published message is back to be sent once more: a broker that forgets
-- repetitions would else take it for one.
ALTER TABLE {outbox} ADD COLUMN republish_id bigint;
