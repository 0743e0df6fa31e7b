package schema

import (
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/postgres"
)

// Print writes what Apply does to an empty schema, to be read or to be run by other means. It leaves the same tables and
// the same record of versions behind.
func Print(w io.Writer, names postgres.Names, o Options) error {
	o, err := o.validate(names)
	if err != nil {
		return err
	}
	steps, err := o.migrations()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("BEGIN ISOLATION LEVEL READ COMMITTED;\n")
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n\n", pgx.Identifier{names.Schema}.Sanitize())
	b.WriteString(names.SQL(versionTableSQL) + ";\n")
	for _, step := range steps {
		b.WriteString("\n" + step.script(names, o))
	}
	b.WriteString("\nCOMMIT;\n")
	if o.has(Outbox) && o.Columns != nil {
		table := o.table(names)
		fmt.Fprintf(&b, "\n-- The table is yours, and so is this, outside of a transaction:\n%s;\n", table.Index())
		if o.Notify {
			told, err := componentMigrations(notify)
			if err != nil {
				return err
			}
			for _, step := range told {
				fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(step.render(names, o)))
			}
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the schema: %w", err)
	}
	return nil
}

// script is a step with the statement that records it. Table names are plain identifiers, so quoting is enough.
func (m migration) script(names postgres.Names, o Options) string {
	return fmt.Sprintf("-- %s, version %d\n%s\n", m.component, m.version, strings.TrimSpace(m.render(names, o))) +
		names.SQL(
			fmt.Sprintf("INSERT INTO {message_schema_version} (component, name, version) VALUES ('%s', '%s', %d);\n",
				m.component, m.component.table(names), m.version),
		)
}
