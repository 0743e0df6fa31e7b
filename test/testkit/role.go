package testkit

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Ordinary gives the same place to a role without any right but to read and write the tables and to run the functions
// that are in the schema now or are made later, as an application's role is. The role goes when the test ends.
func (db *DB) Ordinary() *DB {
	db.t.Helper()
	admin, err := pgx.ParseConfig(db.URL())
	if err != nil {
		db.t.Fatalf("reading the connection string: %v", err)
	}
	own := *db
	own.User, own.Password = uniqueName("role"), "ordinary"
	role, schema := pgx.Identifier{own.User}.Sanitize(), pgx.Identifier{db.Schema}.Sanitize()
	run(db.t, admin, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", role, own.Password))
	db.t.Cleanup(func() {
		runCleanup(db.t, admin, "DROP OWNED BY "+role)
		runCleanup(db.t, admin, "DROP ROLE "+role)
	})
	for _, grant := range []string{
		"ALTER ROLE %[1]s SET search_path = %[2]s",
		"GRANT USAGE ON SCHEMA %[2]s TO %[1]s",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[2]s TO %[1]s",
		"ALTER DEFAULT PRIVILEGES IN SCHEMA %[2]s GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %[1]s",
	} {
		run(db.t, admin, fmt.Sprintf(grant, role, schema))
	}
	own.pool = newPool(db.t, own.URL())
	return &own
}
