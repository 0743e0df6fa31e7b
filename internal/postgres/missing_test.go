package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

// What the server says of a missing object is shown to people, so it must not repeat a value of the statement.
func TestMissingNamesTheObjectAndNoValue(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	cases := map[string]struct{ statement, want string }{
		"a table":    {`INSERT INTO nowhere SELECT 'canary'`, `relation "nowhere" does not exist`},
		"a column":   {`SELECT colour FROM (SELECT 'canary' AS a) x`, `column "colour" does not exist`},
		"a function": {`SELECT nothing('canary'::text, 4711)`, `function nothing(text, integer) does not exist`},
		"a type":     {`SELECT 'canary'::nothing`, `type "nothing" does not exist`},
		"a schema":   {`CREATE TABLE nowhere.canaries (a text DEFAULT 'canary')`, `schema "nowhere" does not exist`},
		"a value":    {`SELECT 'canary'::int`, ""},
		"a mistake":  {`SELECT 'canary' FROM WHERE`, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := db.Connect().PgConn().Exec(t.Context(), tc.statement).ReadAll()
			var refused *pgconn.PgError
			if !errors.As(err, &refused) {
				t.Fatalf("the server said %v", err)
			}
			if got := postgres.Missing(refused); got != tc.want || strings.Contains(got, "'canary'") {
				t.Errorf("Missing() = %q, want %q", got, tc.want)
			}
		})
	}
}
