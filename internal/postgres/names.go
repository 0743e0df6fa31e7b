// Package postgres connects to PostgreSQL the way both workers need it and gives statements their names:
// typed settings instead of a DSN, rotated credentials, bounded waits, quoted identifiers.
//
// The statements live in the packages below it: schema (migrations), outboxdb and inboxdb.
package postgres

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Names gives statements the configured schema and outbox table.
type Names struct {
	Schema string // such as "public"
	Outbox string // such as "message_outbox"; empty where only inbox tables are used
}

var token = regexp.MustCompile(`\{(name:)?(outbox|message)([a-z0-9_]*)\}`)

// SQL writes the configured names into a statement. {outbox_lease} becomes the quoted, schema-qualified
// name of the outbox table plus its suffix, {message_inbox} that of a table with a fixed name, and
// {name:outbox_ready} the bare quoted name, as index definitions want it.
func (n Names) SQL(statement string) string {
	return token.ReplaceAllStringFunc(statement, func(t string) string {
		name, bare := strings.CutPrefix(strings.Trim(t, "{}"), "name:")
		if suffix, ok := strings.CutPrefix(name, "outbox"); ok {
			name = n.Outbox + suffix
		}
		if bare {
			return pgx.Identifier{name}.Sanitize()
		}
		return pgx.Identifier{n.Schema, name}.Sanitize()
	})
}

// Lengths PostgreSQL would silently cut: the outbox name leaves room for the longest suffix of its indexes.
const (
	maxNameBytes   = 63
	maxOutboxBytes = 40
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Validate checks that each name is one plain identifier. Names are quoted as well when they are used.
func (n Names) Validate() error {
	if !identifier.MatchString(n.Schema) || len(n.Schema) > maxNameBytes {
		return fmt.Errorf("schema name %q is not an identifier of at most %d bytes", n.Schema, maxNameBytes)
	}
	if n.Outbox != "" && (!identifier.MatchString(n.Outbox) || len(n.Outbox) > maxOutboxBytes) {
		return fmt.Errorf("outbox table name %q is not an identifier of at most %d bytes", n.Outbox, maxOutboxBytes)
	}
	return nil
}
