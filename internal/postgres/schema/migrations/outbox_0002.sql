-- The writer for every language that can call a function. It checks what it is given, numbers the messages of a key
-- under the lock of the key's sequence row and inserts. What it raises names the field (also as the error's column)
-- and never quotes a value: 22023 not valid, 54000 too large, 23505 the id is in use. jsonb itself refuses NUL in
-- headers with 22P05. It runs with the caller's rights, and the fixed search_path keeps the caller's objects out.
CREATE FUNCTION {outbox_write}(
  ordering_key      text,
  event_type        text,
  payload           bytea,
  source            text,
  headers           jsonb DEFAULT NULL,
  destination       text DEFAULT '',
  content_type      text DEFAULT 'application/json',
  schema_version    int DEFAULT 1,
  event_id          uuid DEFAULT NULL,
  occurred_at       timestamptz DEFAULT NULL,
  traceparent       text DEFAULT NULL,
  expires_at        timestamptz DEFAULT NULL,
  aggregate_version bigint DEFAULT NULL
) RETURNS TABLE (id uuid, version bigint)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $write$
#variable_conflict use_column
DECLARE
  a_key      ALIAS FOR $1;
  a_type     ALIAS FOR $2;
  a_payload  ALIAS FOR $3;
  a_source   ALIAS FOR $4;
  a_headers  ALIAS FOR $5;
  a_id       ALIAS FOR $9;
  a_occurred ALIAS FOR $10;
  a_trace    ALIAS FOR $11;
  a_expires  ALIAS FOR $12;
  a_version  ALIAS FOR $13;
  a_dest     text := coalesce($6, '');
  a_content  text := coalesce($7, 'application/json');
  a_schema   int := coalesce($8, 1);
  field      text;
  problem    text;
  h          record;
  size       bigint := 0;
  micros     bigint;
BEGIN
  CASE
    WHEN a_key = '' THEN field := 'ordering_key'; problem := 'is empty; NULL makes a message unordered';
    WHEN octet_length(a_key) > 1024 THEN field := 'ordering_key'; problem := 'is longer than 1024 bytes';
    WHEN a_type IS NULL OR a_type COLLATE "C" !~ '^[A-Za-z0-9._/-]{1,200}$'
      THEN field := 'event_type'; problem := 'is not 1 to 200 letters, digits, dots, slashes, hyphens or underscores';
    WHEN starts_with(a_type, 'postrider.') THEN field := 'event_type'; problem := 'begins with postrider., which is reserved';
    WHEN a_payload IS NULL THEN field := 'payload'; problem := 'is NULL';
    WHEN a_source IS NULL OR a_source = '' THEN field := 'source'; problem := 'is missing';
    WHEN octet_length(a_source) > 512 THEN field := 'source'; problem := 'is longer than 512 bytes';
    WHEN octet_length(a_dest) > 512 THEN field := 'destination'; problem := 'is longer than 512 bytes';
    WHEN a_content COLLATE "C" !~ '^[!-~]([ -~]{0,253}[!-~])?$'
      THEN field := 'content_type'; problem := 'is not 1 to 255 printable ASCII characters';
    WHEN a_schema < 1 THEN field := 'schema_version'; problem := 'is less than 1';
    WHEN a_trace COLLATE "C" !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
      THEN field := 'traceparent'; problem := 'is not in the form of W3C Trace Context';
    WHEN a_occurred < '0001-01-01 UTC' OR a_occurred >= '10000-01-01 UTC'
      THEN field := 'occurred_at'; problem := 'is not between the years 1 and 9999';
    WHEN a_expires IS NOT NULL AND a_key IS NOT NULL
      THEN field := 'expires_at'; problem := 'is for unordered messages only: an expired one would leave a hole in its key';
    WHEN a_expires < '0001-01-01 UTC' OR a_expires >= '10000-01-01 UTC'
      THEN field := 'expires_at'; problem := 'is not between the years 1 and 9999';
    WHEN a_version IS NOT NULL AND a_key IS NULL THEN field := 'aggregate_version'; problem := 'needs an ordering_key';
    WHEN a_version < 1 THEN field := 'aggregate_version'; problem := 'is less than 1';
    WHEN a_headers IS NOT NULL AND jsonb_typeof(a_headers) <> 'object' THEN field := 'headers'; problem := 'is not an object of texts';
    ELSE
  END CASE;
  IF problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'postrider: ' || field || ' ' || problem, COLUMN = field;
  END IF;
  IF octet_length(a_payload) > 1048576 THEN
    RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'postrider: payload is larger than 1 MiB', COLUMN = 'payload';
  END IF;

  IF a_headers IS NOT NULL THEN
    FOR h IN SELECT e.key COLLATE "C" AS name, jsonb_typeof(e.value) AS type, (e.value #>> '{}') COLLATE "C" AS value, row_number() OVER () AS n
             FROM jsonb_each(a_headers) e LOOP
      CASE
        WHEN h.name !~ '^[a-z][a-z0-9-]{0,62}$' THEN problem := 'have a name not of the form ^[a-z][a-z0-9-]{0,62}$';
        WHEN h.name ~ '^(nats-|ce-|x-|amq|kafka-|postrider-)' OR h.name IN ('event-id', 'event-type', 'schema-version',
          'ordering-key', 'aggregate-version', 'occurred-at', 'source', 'content-type', 'stream', 'traceparent', 'cc', 'bcc',
          'expiration', 'user-id', 'reply-to', 'delivery-mode', 'priority', 'cluster-id')
          THEN problem := 'have the name ' || h.name || ', which is reserved';
        WHEN h.type <> 'string' THEN problem := 'have a value of ' || h.name || ' that is not a text';
        WHEN h.value ~ '[\r\n]' THEN problem := 'have a line break in the value of ' || h.name;
        ELSE
      END CASE;
      IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'postrider: headers ' || problem, COLUMN = 'headers';
      END IF;
      -- Headers travel with all but printable ASCII as three bytes a byte.
      size := size + octet_length(h.name) + 3 * octet_length(h.value) - 2 * length(regexp_replace(h.value, '[^!-$&-~]', '', 'g'));
      IF h.n > 64 OR size > 32768 THEN
        RAISE EXCEPTION USING ERRCODE = '54000', COLUMN = 'headers',
          MESSAGE = 'postrider: headers are more than 64, or larger than 32 KiB as they travel';
      END IF;
    END LOOP;
  END IF;

  id := a_id;
  IF id IS NULL AND current_setting('server_version_num')::int >= 180000 THEN
    id := uuidv7();
  ELSIF id IS NULL THEN
    -- The first half of a version 7 id: 48 bits of milliseconds, the version, 12 bits of their fraction. The second is random.
    micros := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    id := encode(int8send(((micros / 1000) << 16) | 28672 | ((micros % 1000) * 4096 / 1000))
      || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid;
  END IF;

  -- Before the position is taken there is a transaction id: by the sequence row, or asked for.
  IF a_key IS NULL THEN
    PERFORM pg_current_xact_id();
  ELSIF a_version IS NULL THEN
    INSERT INTO {outbox_sequence} AS q (source, destination, ordering_key, last) VALUES (a_source, a_dest, a_key, 1)
      ON CONFLICT (source, destination, ordering_key) DO UPDATE SET last = q.last + 1
      RETURNING q.last INTO version;
  ELSE
    INSERT INTO {outbox_sequence} AS q (source, destination, ordering_key, last) VALUES (a_source, a_dest, a_key, a_version)
      ON CONFLICT (source, destination, ordering_key) DO UPDATE SET last = excluded.last WHERE q.last < excluded.last
      RETURNING q.last INTO version;
    IF version IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = '22023', COLUMN = 'aggregate_version',
        MESSAGE = 'postrider: aggregate_version is not above the last one of this ordering_key';
    END IF;
  END IF;

  INSERT INTO {outbox} (event_id, event_type, schema_version, source, ordering_key, aggregate_version, destination,
    content_type, payload, headers, traceparent, occurred_at, expires_at)
  VALUES (id, a_type, a_schema, a_source, coalesce(a_key, id::text), version, a_dest,
    a_content, a_payload, a_headers, a_trace, coalesce(a_occurred, clock_timestamp()), a_expires)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = '23505', MESSAGE = 'postrider: event_id is in use', COLUMN = 'event_id';
  END IF;
  RETURN NEXT;
END $write$;
REVOKE ALL ON FUNCTION {outbox_write}(text, text, bytea, text, jsonb, text, text, int, uuid, timestamptz, text, timestamptz, bigint) FROM PUBLIC;
