-- Tells relays with batch.wakeUp: Notify that rows were committed. Asked for and not always there: a transaction that
-- notifies takes a lock of the whole database while it commits.
CREATE FUNCTION {outbox_tell}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $write$
BEGIN
  PERFORM pg_notify(TG_TABLE_NAME, TG_TABLE_SCHEMA);
  RETURN NULL;
END $write$;
CREATE TRIGGER {name:outbox_notify} AFTER INSERT ON {outbox} FOR EACH STATEMENT EXECUTE FUNCTION {outbox_tell}();
