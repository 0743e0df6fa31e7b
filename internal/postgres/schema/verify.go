package schema

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/mapped"
)

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Error says what of a schema is not as it must be. Message is safe to show, and DDL mends it.
type Error struct {
	Reason  postgres.Reason
	Message string
	// DDL holds the statements that are missing; empty where no statement helps.
	DDL string
}

// Error implements error.
func (e *Error) Error() string {
	if e.DDL == "" {
		return e.Message
	}
	return e.Message + "; missing:\n" + e.DDL
}

// Safe returns the reason and the text that may be shown in a condition: postgres.Classify and SafeError use it.
func (e *Error) Safe() (reason postgres.Reason, message string) { return e.Reason, e.Message }

// Expected says what Verify holds a schema to.
type Expected struct {
	Options
	// Role, unless empty, is the part the current user plays: its rights are checked.
	Role Role
}

// Verify checks, without changing anything, that the tables are there as this program needs them and that the current
// user may use them. What is wrong comes back as an *Error, the first thing found; other errors are the connection's.
func Verify(ctx context.Context, q Querier, names postgres.Names, x Expected) error {
	o, err := x.validate(names)
	if err != nil {
		return err
	}
	steps, err := o.migrations()
	if err != nil {
		return err
	}
	checks := []func() error{
		func() error { return verifySchema(ctx, q, names, o) },
		func() error { return verifyVersions(ctx, q, names, o, steps) },
		func() error { return verifyObjects(ctx, q, names, o, steps) },
		func() error { return verifyRights(ctx, q, names, o, x.Role) },
	}
	if o.has(Outbox) && x.Role != RoleApplication {
		checks = append(checks, func() error { return verifyOwner(ctx, q, names, o) })
		if o.Columns == nil {
			checks = append(checks, func() error { return verifyIdentity(ctx, q, names, o) })
		}
	}
	if o.has(Outbox) && o.Columns != nil { // first of all: the tables beside it come with `schema apply`, this does not
		checks = slices.Insert(checks, 1, func() error { return verifyColumns(ctx, q, names, o) })
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// VerifyNotify checks that an outbox tells relays of commits. What is wrong comes back as an *Error.
func VerifyNotify(ctx context.Context, q Querier, names postgres.Names) error {
	steps, err := componentMigrations(notify)
	if err != nil {
		return err
	}
	return verifyObjects(ctx, q, names, Options{}, steps)
}

// schemaSQL asks whether the schema is there and may be used.
const schemaSQL = `SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = $1`

func verifySchema(ctx context.Context, q Querier, names postgres.Names, o Options) error {
	var usable bool
	err := q.QueryRow(ctx, schemaSQL, names.Schema).Scan(&usable)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		var ddl strings.Builder
		if err := Print(&ddl, names, o); err != nil {
			return err
		}
		return &Error{
			Reason: postgres.ReasonSchemaMissing, DDL: ddl.String(),
			Message: fmt.Sprintf("schema %s does not exist; run `postrider schema apply`", names.Schema),
		}
	case err != nil:
		return fmt.Errorf("look for the schema: %w", err)
	case !usable:
		return &Error{
			Reason:  postgres.ReasonPermissionDenied,
			Message: fmt.Sprintf("the role may not use schema %s; see `postrider schema print --roles`", names.Schema),
		}
	}
	return nil
}

// versionsSQL returns the newest applied version of each table, none where the version table is missing or hidden.
const versionsSQL = `SELECT component, name, max(version) FROM {message_schema_version} GROUP BY component, name`

// versionTableExistsSQL is asked first: a missing table would end the caller's transaction.
const versionTableExistsSQL = `SELECT to_regclass($1) IS NOT NULL, coalesce(has_table_privilege(to_regclass($1), 'SELECT'), false)`

func verifyVersions(ctx context.Context, q Querier, names postgres.Names, o Options, steps []migration) error {
	var exists, readable bool
	table := names.SQL("{message_schema_version}")
	if err := q.QueryRow(ctx, versionTableExistsSQL, table).Scan(&exists, &readable); err != nil {
		return fmt.Errorf("look for the version table: %w", err)
	}
	if exists && !readable {
		return nil // the application's role cannot read it; the tables themselves are looked at next
	}
	applied := make(map[string]int)
	if exists {
		rows, err := q.Query(ctx, names.SQL(versionsSQL))
		if err != nil {
			return fmt.Errorf("read schema versions: %w", err)
		}
		var component, name string
		var version int
		if _, err = pgx.ForEachRow(rows, []any{&component, &name, &version}, func() error {
			applied[component+" "+name] = version
			return nil
		}); err != nil {
			return fmt.Errorf("read schema versions: %w", err)
		}
	}
	return missingSteps(names, o, steps, applied, exists)
}

func missingSteps(names postgres.Names, o Options, steps []migration, applied map[string]int, versioned bool) error {
	var missing []string
	reason, what := postgres.ReasonSchemaInvalid, ""
	for _, step := range steps {
		at := applied[string(step.component)+" "+step.component.table(names)]
		if at >= step.version {
			continue
		}
		if at == 0 {
			reason = postgres.ReasonSchemaMissing
		}
		if what == "" {
			what = fmt.Sprintf("the %s tables in schema %s are at version %d, version %d or newer is needed",
				step.component, names.Schema, at, newest(steps, step.component))
		}
		missing = append(missing, step.script(names, o))
	}
	if missing == nil {
		return nil
	}
	if !versioned {
		missing = append([]string{names.SQL(versionTableSQL) + ";\n"}, missing...)
	}
	return &Error{Reason: reason, Message: what + "; run `postrider schema apply`", DDL: strings.Join(missing, "\n")}
}

func newest(steps []migration, c Component) int {
	version := 0
	for _, s := range steps {
		if s.component == c {
			version = max(version, s.version)
		}
	}
	return version
}

// columnsSQL lists the columns of a schema's tables, indexes and partitions; an index has none of its own that matter.
const columnsSQL = `
SELECT c.relname, c.relkind::text, coalesce(a.attname, ''), coalesce(format_type(a.atttypid, NULL), ''),
  coalesce(a.attgenerated::text, ''), coalesce(i.indisvalid, true)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $1
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
WHERE c.relname = ANY($2)`

// functionsSQL lists functions by their number of arguments.
const functionsSQL = `
SELECT p.proname, p.pronargs FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace AND n.nspname = $1 WHERE p.proname = ANY($2)`

// rulesSQL lists checks of values, and triggers with whether they fire.
const rulesSQL = `
SELECT c.conname, true FROM pg_catalog.pg_constraint c
JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace AND n.nspname = $1 WHERE c.contype = 'c' AND c.conname = ANY($2)
UNION ALL
SELECT t.tgname, t.tgenabled IN ('O', 'A') FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $1 WHERE t.tgname = ANY($2)`

// found is what the catalog says of one name.
type found struct {
	exists    bool
	valid     bool
	columns   map[string]string // name → type
	generated map[string]bool
}

func verifyObjects(ctx context.Context, q Querier, names postgres.Names, o Options, steps []migration) error {
	want := objects(steps)
	catalog, err := readCatalog(ctx, q, names, want)
	if err != nil {
		return err
	}
	var missing, problems []string
	for _, w := range want {
		problem, ddl := w.compare(catalog[bare(names, w.token)], names, o)
		if problem != "" {
			problems = append(problems, problem)
			missing = append(missing, ddl...)
		}
	}
	if problems == nil {
		return nil
	}
	const shown = 3
	message := strings.Join(problems[:min(shown, len(problems))], ", ")
	if more := len(problems) - shown; more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	return &Error{
		Reason: postgres.ReasonSchemaInvalid, Message: message + " in schema " + names.Schema,
		DDL: strings.Join(missing, ";\n") + ";\n",
	}
}

// bare is the unquoted name a token stands for.
func bare(names postgres.Names, token string) string {
	return strings.Trim(names.SQL("{name:"+strings.Trim(token, "{}")+"}"), `"`)
}

func readCatalog(ctx context.Context, q Querier, names postgres.Names, want []object) (map[string]*found, error) {
	catalog := make(map[string]*found, len(want))
	list := make([]string, 0, len(want))
	for _, w := range want {
		name := bare(names, w.token)
		list = append(list, name)
		catalog[name] = &found{columns: map[string]string{}, generated: map[string]bool{}}
	}
	rows, err := q.Query(ctx, columnsSQL, names.Schema, list)
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	var name, kind, attribute, attributeType, generated string
	var valid bool
	_, err = pgx.ForEachRow(rows, []any{&name, &kind, &attribute, &attributeType, &generated, &valid}, func() error {
		f := catalog[name]
		f.exists, f.valid = true, valid
		f.columns[attribute] = attributeType
		f.generated[attribute] = generated == "s"
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	if err := readRules(ctx, q, names, list, catalog); err != nil {
		return nil, err
	}
	return catalog, readFunctions(ctx, q, names, want, catalog)
}

func readRules(
	ctx context.Context, q Querier, names postgres.Names, list []string, catalog map[string]*found,
) error {
	rows, err := q.Query(ctx, rulesSQL, names.Schema, list)
	if err != nil {
		return fmt.Errorf("read the constraints and triggers: %w", err)
	}
	var name string
	var valid bool
	if _, err = pgx.ForEachRow(rows, []any{&name, &valid}, func() error {
		catalog[name].exists, catalog[name].valid = true, valid
		return nil
	}); err != nil {
		return fmt.Errorf("read the constraints and triggers: %w", err)
	}
	return nil
}

func readFunctions(
	ctx context.Context,
	q Querier,
	names postgres.Names,
	want []object,
	catalog map[string]*found,
) error {
	takes := make(map[string]int)
	for _, w := range want {
		if w.kind == function {
			takes[bare(names, w.token)] = w.arguments()
		}
	}
	rows, err := q.Query(ctx, functionsSQL, names.Schema, slices.Collect(maps.Keys(takes)))
	if err != nil {
		return fmt.Errorf("read the functions: %w", err)
	}
	var name string
	var arguments int
	_, err = pgx.ForEachRow(rows, []any{&name, &arguments}, func() error {
		if arguments == takes[name] {
			catalog[name].exists, catalog[name].valid = true, true
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the functions: %w", err)
	}
	return nil
}

// compare says what is wrong with an object, empty where nothing is, and the statements that mend it.
func (w object) compare(got *found, names postgres.Names, o Options) (problem string, ddl []string) {
	render := func(s string) string { return migration{sql: s}.render(names, o) }
	name := bare(names, w.token)
	switch {
	case !got.exists:
		return fmt.Sprintf("%s %s is missing", w.kind, name), []string{render(w.ddl)}
	case !got.valid:
		return w.mend(name, names)
	}
	var wrong []string
	for _, c := range w.columns {
		kind, ok := got.columns[c.name]
		switch {
		case !ok:
			wrong = append(wrong, c.name)
			ddl = append(ddl, render(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s", w.token, c.definition)))
		case kind != c.kind:
			wrong = append(wrong, fmt.Sprintf("%s (is %s, not %s)", c.name, kind, c.kind))
			ddl = append(ddl, render(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s", w.token, c.name, c.kind)))
		case strings.Contains(c.definition, "GENERATED ALWAYS AS (") && !got.generated[c.name]:
			wrong = append(wrong, c.name+" (is not generated)")
			ddl = append(
				ddl,
				render(fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s, ADD COLUMN %s", w.token, c.name, c.definition)),
			)
		}
	}
	if wrong == nil {
		return "", nil
	}
	return fmt.Sprintf("table %s: column %s missing or different", name, strings.Join(wrong, ", ")), ddl
}

// mend says what is wrong with an object that is there and does not work.
func (w object) mend(name string, names postgres.Names) (problem string, ddl []string) {
	if w.kind == trigger {
		return fmt.Sprintf("trigger %s is disabled", name),
			[]string{names.SQL("ALTER TABLE " + w.on + " ENABLE TRIGGER {name:" + strings.Trim(w.token, "{}") + "}")}
	}
	return fmt.Sprintf("index %s is invalid", name), []string{"REINDEX INDEX " + names.SQL(w.token)}
}

// String names the kind of an object.
func (k objectKind) String() string {
	switch k {
	case table:
		return "table"
	case partition:
		return "partition"
	case index:
		return "index"
	case function:
		return "function"
	case constraint:
		return "constraint"
	case trigger:
		return "trigger"
	default:
		return "object"
	}
}

// ownerSQL reads what must not change under a table: its shards, and how the server hashes keys.
const ownerSQL = `SELECT shards, hash_vector = hashtextextended('postrider' COLLATE "C", 0) FROM {outbox_owner}`

func verifyOwner(ctx context.Context, q Querier, names postgres.Names, o Options) error {
	var shards int32
	var sameHash bool
	err := q.QueryRow(ctx, names.SQL(ownerSQL)).Scan(&shards, &sameHash)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return invalidSchema("table %s_owner has no row; it was emptied by hand", names.Outbox)
	case err != nil:
		return fmt.Errorf("read the owner row: %w", err)
	case shards != o.Shards:
		return invalidSchema("table %s was made with %d shards, not %d; the number of shards cannot change",
			names.Outbox, shards, o.Shards)
	case !sameHash:
		return invalidSchema(
			"this server hashes keys otherwise than the one table %s was made on; move the rows into a new table",
			names.Outbox,
		)
	}
	return nil
}

// verifyColumns checks the table that the team already has.
func verifyColumns(ctx context.Context, q Querier, names postgres.Names, o Options) error {
	_, err := mapped.Verify(ctx, q, o.table(names))
	if ddl, missing := mapped.IsMissing(err); missing {
		return &Error{Reason: postgres.ReasonSchemaInvalid, Message: err.Error(), DDL: ddl + ";\n"}
	}
	if wrong, ok := errors.AsType[*postgres.Error](err); ok {
		return &Error{Reason: wrong.Reason, Message: wrong.Message}
	}
	return err
}

func invalidSchema(format string, args ...any) *Error {
	return &Error{Reason: postgres.ReasonSchemaInvalid, Message: fmt.Sprintf(format, args...)}
}

// identitySQL finds the sequence behind position. Logical replication copies rows but not where the sequence stands. The
// highest position is looked for by the indexes that there are: of each shard's ready rows, and of those that are held.
const identitySQL = `
SELECT q.seqrelid::regclass::text, q.seqcache, pg_sequence_last_value(q.seqrelid), greatest(
  (SELECT max(x.position) FROM generate_series(0, $3::int - 1) s(shard) CROSS JOIN LATERAL (
    SELECT o.position FROM {outbox} o WHERE o.shard = s.shard AND NOT o.held ORDER BY o.position DESC LIMIT 1) x),
  (SELECT max(o.position) FROM {outbox} o WHERE o.held))
FROM pg_catalog.pg_sequence q
WHERE q.seqrelid = pg_get_serial_sequence(format('%I.%I', $1::text, $2::text), 'position')::regclass`

func verifyIdentity(ctx context.Context, q Querier, names postgres.Names, o Options) error {
	var sequence string
	var cache int64
	var last, highest *int64
	err := q.QueryRow(ctx, names.SQL(identitySQL), names.Schema, names.Outbox, o.Shards).
		Scan(&sequence, &cache, &last, &highest)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return invalidSchema("column position of table %s is no identity column", names.Outbox)
	case err != nil:
		return fmt.Errorf("check the identity of position: %w", err)
	case cache != 1:
		return &Error{
			Reason: postgres.ReasonSchemaInvalid,
			Message: fmt.Sprintf("sequence %s caches %d positions, so that they are "+
				"given out of order; it must be 1", sequence, cache),
			DDL: fmt.Sprintf("ALTER SEQUENCE %s CACHE 1;\n", sequence),
		}
	case highest != nil && (last == nil || *last < *highest):
		return &Error{
			Reason: postgres.ReasonSchemaInvalid, Message: fmt.Sprintf("sequence %s is behind the rows of table %s; "+
				"logical replication and restores of single tables leave it behind", sequence, names.Outbox),
			DDL: fmt.Sprintf("SELECT setval('%s', %d);\n", strings.ReplaceAll(sequence, "'", "''"), *highest),
		}
	}
	return nil
}

// rightsSQL asks for rights, one a row, so that all that are missing are found at once. A column's right is also given
// by the table's.
const rightsSQL = `
SELECT u.ord - 1 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS u (kind, object, col, privilege, ord)
WHERE NOT CASE u.kind
  WHEN 'column' THEN has_column_privilege(u.object, u.col, u.privilege)
  WHEN 'sequence' THEN has_sequence_privilege(u.object, u.privilege)
  WHEN 'function' THEN has_function_privilege(u.object, u.privilege)
  WHEN 'schema' THEN has_schema_privilege(u.object, u.privilege)
  ELSE has_table_privilege(u.object, u.privilege) END
ORDER BY u.ord`

func verifyRights(ctx context.Context, q Querier, names postgres.Names, o Options, role Role) error {
	if role == "" || role == RoleMigrator {
		return nil
	}
	var list []grant
	var kinds, objects, columns, privileges []string
	for _, g := range o.grantsOf(role) {
		kind, cols, on := g.asked(names)
		for _, privilege := range g.privileges {
			for _, col := range cols {
				list = append(list, g)
				kinds, objects = append(kinds, kind), append(objects, on)
				columns, privileges = append(columns, col), append(privileges, privilege)
			}
		}
	}
	rows, err := q.Query(ctx, rightsSQL, kinds, objects, columns, privileges)
	if err != nil {
		return fmt.Errorf("check the role's rights: %w", err)
	}
	lacking, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return fmt.Errorf("check the role's rights: %w", err)
	}
	if len(lacking) == 0 {
		return nil
	}
	return lackOf(ctx, q, names, role, list, lacking)
}

// asked says how a grant's object is asked for.
func (g grant) asked(names postgres.Names) (kind string, columns []string, object string) {
	object = names.SQL(g.object)
	switch {
	case g.columns != nil:
		return "column", g.columns, object
	case g.sequence:
		return "sequence", []string{""}, object
	case g.function:
		return "function", []string{""}, object + writerArguments
	default:
		return "table", []string{""}, object
	}
}

func lackOf(ctx context.Context, q Querier, names postgres.Names, role Role, list []grant, lacking []int) error {
	var user string
	if err := q.QueryRow(ctx, "SELECT current_user::text").Scan(&user); err != nil {
		return fmt.Errorf("read the user's name: %w", err)
	}
	var ddl []string
	for _, i := range lacking {
		ddl = append(ddl, list[i].statement(names, user))
	}
	first := list[lacking[0]]
	return &Error{
		Reason: postgres.ReasonPermissionDenied,
		Message: fmt.Sprintf("role %s lacks rights of the %s, such as %s on %s; see `postrider schema print --roles`",
			user, role, first.privileges[0], bare(names, first.object)),
		DDL: strings.Join(slices.Compact(ddl), "\n") + "\n",
	}
}

// powersSQL asks for what a handler's statements must not have behind them.
const powersSQL = `
SELECT r.rolsuper OR r.rolcreaterole OR pg_has_role(r.oid, 'pg_execute_server_program', 'USAGE')
  OR pg_has_role(r.oid, 'pg_read_server_files', 'USAGE') OR pg_has_role(r.oid, 'pg_write_server_files', 'USAGE')
FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`

// VerifyPowers refuses a role that may do more than any consumer needs: whoever writes a resource writes its statements,
// and they run as this role.
func VerifyPowers(ctx context.Context, q Querier) error {
	var powerful bool
	if err := q.QueryRow(ctx, powersSQL).Scan(&powerful); err != nil {
		return fmt.Errorf("read the role's powers: %w", err)
	}
	if !powerful {
		return nil
	}
	return &Error{
		Reason: postgres.ReasonOverPrivileged,
		Message: "the role is a superuser, may make roles, or may read files or run programs on the server; " +
			"use the role of `postrider schema print --roles`",
	}
}
