package schema

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
)

// Role is who uses the tables.
type Role string

// The roles.
const (
	// RoleApplication writes messages in its own transactions.
	RoleApplication Role = "application"
	// RoleRelay is the relay's process.
	RoleRelay Role = "relay"
	// RoleConsumer is the consumer's process; what its handler's statements need comes on top.
	RoleConsumer Role = "consumer"
	// RoleMigrator applies migrations and owns the tables.
	RoleMigrator Role = "migrator"
)

// RoleNames are the names of the roles in the database. Where one is empty, "postrider_" and the role is meant.
type RoleNames map[Role]string

func (r RoleNames) name(role Role) string {
	if name := r[role]; name != "" {
		return name
	}
	return "postrider_" + string(role)
}

// grant is some rights on one table, sequence or function.
type grant struct {
	component  Component
	object     string // a token
	privileges []string
	columns    []string // where not all of the table
	sequence   bool
	function   bool
}

// writerColumns are those that a writer may fill: never held, attempts or position.
func writerColumns() []string {
	return []string{
		"event_id", "event_type", "schema_version", "source", "ordering_key", "aggregate_version", "destination",
		"content_type", "payload", "headers", "traceparent", "occurred_at", "expires_at",
	}
}

// writerArguments is the signature of message_outbox_write.
const writerArguments = "(text, text, bytea, text, jsonb, text, text, int, uuid, timestamptz, text, timestamptz, bigint)"

// grants is the one list of a role's rights: Roles prints it and Verify checks it.
func (o Options) grants(role Role) []grant {
	switch role {
	case RoleApplication:
		if o.Columns != nil {
			return nil // the table is the team's, and so is who writes into it
		}
		return applicationGrants()
	case RoleRelay:
		if o.Columns != nil {
			return append(o.besideGrants(), sharedGrants(Outbox)...)
		}
		return append(relayGrants(), sharedGrants(Outbox)...)
	case RoleConsumer:
		return append(consumerGrants(), sharedGrants(Inbox)...)
	default: // the migrator owns what it makes
		return nil
	}
}

func applicationGrants() []grant {
	return []grant{
		{component: Outbox, object: "{outbox}", privileges: []string{"INSERT"}, columns: writerColumns()},
		{component: Outbox, object: "{outbox_sequence}", privileges: []string{"SELECT", "INSERT"}},
		{component: Outbox, object: "{outbox_sequence}", privileges: []string{"UPDATE"}, columns: []string{"last"}},
		{component: Outbox, object: "{outbox_write}", privileges: []string{"EXECUTE"}, function: true},
	}
}

func relayGrants() []grant {
	list := []grant{
		{component: Outbox, object: "{outbox}", privileges: []string{"SELECT", "DELETE"}},
		// Markers take the place of dead letters, and replays come back to theirs.
		{component: Outbox, object: "{outbox}", privileges: []string{"INSERT"}, columns: append(writerColumns(),
			"position", "held", "failure_id", "republish_id")},
		{component: Outbox, object: "{outbox}", privileges: []string{"UPDATE"}, columns: []string{
			"held", "attempts", "unknowns", "first_failed_at", "last_failed_at", "last_error_code", "failure_id",
			"failing_for", "ambiguous_since",
		}},
		{component: Outbox, object: "{outbox_position_seq}", privileges: []string{"SELECT"}, sequence: true},
		{component: Outbox, object: "{outbox_gate}", privileges: everything()},
		{component: Outbox, object: "{outbox_lease}", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
		{component: Outbox, object: "{outbox_member}", privileges: everything()},
		// What is sent again on purpose leaves the archive.
		{component: Outbox, object: "{outbox_published}", privileges: []string{"SELECT", "INSERT", "DELETE"}},
		{component: Outbox, object: "{outbox_ring}", privileges: []string{"SELECT", "UPDATE"}},
		{component: Outbox, object: "{outbox_owner}", privileges: []string{"SELECT", "UPDATE"}},
	}
	for slot := range 8 {
		leaf := fmt.Sprintf("{outbox_published_%d}", slot)
		list = append(list, grant{component: Outbox, object: leaf, privileges: []string{"TRUNCATE"}})
	}
	return list
}

// besideGrants are those of a relay on a table that the team already has, and on what is beside it.
func (o Options) besideGrants() []grant {
	list := []grant{
		{component: Outbox, object: "{outbox_gate}", privileges: everything()},
		{component: Outbox, object: "{outbox_failing}", privileges: everything()},
		{component: Outbox, object: "{outbox_lease}", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
		{component: Outbox, object: "{outbox_member}", privileges: everything()},
		{component: Outbox, object: "{outbox_owner}", privileges: []string{"SELECT", "UPDATE"}},
	}
	table := o.table(postgres.Names{})
	if table.Deletes() {
		return append(list, grant{component: Outbox, object: "{outbox}", privileges: []string{"SELECT", "DELETE"}})
	}
	return append(list, grant{component: Outbox, object: "{outbox}", privileges: []string{"SELECT"}},
		grant{component: Outbox, object: "{outbox}", privileges: []string{"UPDATE"}, columns: table.Writes()})
}

func consumerGrants() []grant {
	return []grant{
		{component: Inbox, object: "{message_inbox}", privileges: everything()},
		{component: Inbox, object: "{message_inbox_key}", privileges: everything()},
		{component: Inbox, object: "{message_parked}", privileges: everything()},
		{component: Inbox, object: "{message_skipped}", privileges: everything()},
		{component: Inbox, object: "{message_inbox_owner}", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
	}
}

// sharedGrants are those of every worker.
func sharedGrants(c Component) []grant {
	return []grant{
		{component: c, object: "{message_failure}", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
		{component: c, object: "{message_audit}", privileges: []string{"SELECT", "INSERT"}},
		{component: c, object: "{message_schema_version}", privileges: []string{"SELECT"}},
	}
}

func everything() []string { return []string{"SELECT", "INSERT", "UPDATE", "DELETE"} }

// statement writes the grant for a role of that name.
func (g grant) statement(names postgres.Names, role string) string {
	what := strings.Join(g.privileges, ", ")
	if g.columns != nil {
		quoted := make([]string, len(g.columns))
		for i, c := range g.columns {
			quoted[i] = ident(c)
		}
		what += " (" + strings.Join(quoted, ", ") + ")"
	}
	on := names.SQL(g.object)
	switch {
	case g.function:
		on = "FUNCTION " + on + writerArguments
	case g.sequence:
		on = "SEQUENCE " + on
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s;", what, on, pgx.Identifier{role}.Sanitize())
}

// ident quotes a column's name where it needs quotes: a team's own may.
func ident(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// settings bound the waits of a role's sessions. They belong to the role, so that a transaction-mode pooler keeps them.
func settings(role Role) []string {
	switch role {
	case RoleRelay:
		return []string{
			"lock_timeout = '5s'",
			"statement_timeout = '30s'",
			"idle_in_transaction_session_timeout = '60s'",
		}
	case RoleConsumer:
		return []string{
			"lock_timeout = '5s'",
			"statement_timeout = '60s'",
			"idle_in_transaction_session_timeout = '60s'",
		}
	case RoleMigrator:
		return []string{
			"lock_timeout = '10s'",
			"statement_timeout = '15min'",
			"idle_in_transaction_session_timeout = '60s'",
		}
	default: // the application's own; an open transaction of it that wrote holds up the relay's reads
		return []string{"idle_in_transaction_session_timeout = '60s'"}
	}
}

// Roles writes the least grants for the roles that use the asked components. The roles must exist, and so must the
// tables; the statements may be run again.
func Roles(w io.Writer, names postgres.Names, o Options, roles RoleNames) error {
	o, err := o.validate(names)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("-- The least rights for each role. Make the roles first, such as:\n")
	for _, role := range o.roles() {
		fmt.Fprintf(&b, "--   CREATE ROLE %s LOGIN PASSWORD '...';\n", pgx.Identifier{roles.name(role)}.Sanitize())
	}
	for _, role := range o.roles() {
		name := pgx.Identifier{roles.name(role)}.Sanitize()
		fmt.Fprintf(&b, "\n-- %s\n", role)
		for _, statement := range o.statements(names, role, roles.name(role)) {
			b.WriteString(statement + "\n")
		}
		for _, s := range settings(role) {
			fmt.Fprintf(&b, "ALTER ROLE %s SET %s;\n", name, s)
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the grants: %w", err)
	}
	return nil
}

// Grants returns the statements that give a user the least rights for a role's part, without the settings that only who
// may alter roles can give. The tables must exist.
func Grants(names postgres.Names, role Role, user string) []string {
	component := Outbox
	if role == RoleConsumer {
		component = Inbox
	}
	return Options{Components: []Component{component}}.Grants(names, role, user)
}

// Grants does the same for the components of the options, and for a table that the team already has.
func (o Options) Grants(names postgres.Names, role Role, user string) []string {
	return o.statements(names, role, user)
}

func (o Options) statements(names postgres.Names, role Role, user string) []string {
	usage := "USAGE"
	if role == RoleMigrator {
		usage = "USAGE, CREATE" // it owns what it makes, so it needs no grants on tables
	}
	list := []string{fmt.Sprintf("GRANT %s ON SCHEMA %s TO %s;", usage,
		pgx.Identifier{names.Schema}.Sanitize(), pgx.Identifier{user}.Sanitize())}
	for _, g := range o.grantsOf(role) {
		list = append(list, g.statement(names, user))
	}
	return list
}

// roles are those that use the asked components.
func (o Options) roles() []Role {
	var list []Role
	if o.has(Outbox) && o.Columns == nil {
		list = append(list, RoleApplication)
	}
	if o.has(Outbox) {
		list = append(list, RoleRelay)
	}
	if o.has(Inbox) {
		list = append(list, RoleConsumer)
	}
	return append(list, RoleMigrator)
}

// grantsOf returns a role's grants on the asked components.
func (o Options) grantsOf(role Role) []grant {
	return slices.DeleteFunc(o.grants(role), func(g grant) bool { return !o.has(g.component) })
}
