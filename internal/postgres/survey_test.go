package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/test/testkit"
)

func look(t *testing.T, db *testkit.DB, table string) postgres.Survey {
	t.Helper()
	s, err := postgres.Look(t.Context(), db.Pool(), table)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// holder0 returns the likeliest holder.
func holder0(t *testing.T, db *testkit.DB) postgres.Holder {
	t.Helper()
	holders := look(t, db, "ours").Holders
	if len(holders) == 0 {
		t.Fatal("nobody holds back anything")
	}
	return holders[0]
}

// P15: who keeps dead rows from being cleaned away is named, and what ends it does.
func TestWhoHoldsBackCleaningIsNamedAndCanBeEnded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begin []string
		want  string
	}{
		"a session that reads": {
			[]string{`BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT count(*) FROM pg_class`}, "a transaction of process ",
		},
		"a session that has written": {[]string{`BEGIN`, `CREATE TABLE theirs ()`}, "a transaction of process "},
		"a prepared transaction": {
			[]string{`BEGIN`, `CREATE TABLE theirs ()`, `PREPARE TRANSACTION 'it''s'`}, "the prepared transaction 'it''s'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.PostgresServer(
				t,
				local.PostgresConfig{ // writers of other databases hold back cleaning too
					Parameters: map[string]string{"max_prepared_transactions": "2"},
				},
			)
			db := testkit.Postgres(t, testkit.OnServer(server))
			db.Exec(`CREATE TABLE ours (id int)`)
			holder := db.Connect()
			for _, statement := range tc.begin {
				if _, err := holder.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			// What came later holds back less.
			db.Exec(`CREATE TABLE later ()`)
			other := db.Connect()
			if _, err := other.Exec(
				t.Context(),
				`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM later`,
			); err != nil {
				t.Fatal(err)
			}
			first := holder0(t, db)
			if !strings.HasPrefix(first.What, tc.want) ||
				strings.Contains(first.What, fmt.Sprint(other.PgConn().PID())) {
				t.Fatalf("the first holder is %+v, want %q…", first, tc.want)
			}
			if again := holder0(t, db); again != first {
				t.Errorf("the same holder is %+v, and was %+v", again, first)
			}
			db.Exec(first.Remedy)
			testkit.Eventually(t, time.Minute, "only the other one is left", func() bool {
				return strings.Contains(holder0(t, db).What, fmt.Sprint(other.PgConn().PID()))
			})
		})
	}
}

// P12: settings under which the server may lose what it committed are named.
func TestSettingsThatLoseCommitsAreNamed(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(map[string]string{"synchronous_commit": "off"}))
	if got := look(t, db, "none").Loose; len(got) != 1 || got[0] != "synchronous_commit = off" {
		t.Errorf("loose settings %q", got)
	}
	if got := look(t, testkit.Postgres(t), "none"); len(got.Loose) != 0 || got.DeadRows != 0 {
		t.Errorf("a durable server without the table: %+v", got)
	}
}

// P12: whether a commit waits for a copy is known.
func TestCommitsThatWaitForNoCopyAreKnown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		copies, commit string
		alone          bool
	}{
		"no copy is named":                {"", "on", true},
		"one is":                          {"*", "on", false},
		"one is, and commits do not wait": {"*", "local", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.PostgresServer(t, local.PostgresConfig{Parameters: map[string]string{
				"synchronous_standby_names": tc.copies, "synchronous_commit": "local", // there is none to wait for
			}})
			cfg := testkit.Postgres(t, testkit.OnServer(server)).Pool().Config()
			cfg.ConnConfig.RuntimeParams["synchronous_commit"] = tc.commit
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if got, err := postgres.Look(t.Context(), pool, "none"); err != nil || got.Alone != tc.alone {
				t.Errorf("alone: %v, %v; want %v", got.Alone, err, tc.alone)
			}
		})
	}
}

// The workers' roles are not superusers, and a superuser's and another's transaction count as much.
func TestDeadRowsAndHoldersAreSeenWithoutRights(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil))
	db.Exec(`CREATE TABLE ours (id int) WITH (autovacuum_enabled = off)`)
	holder := db.Connect()
	if _, err := holder.Exec(
		t.Context(),
		`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ours`,
	); err != nil {
		t.Fatal(err)
	}
	db.Exec(`INSERT INTO ours SELECT generate_series(1, 500)`)
	db.Exec(`DELETE FROM ours`)
	ordinary := db.Ordinary()
	testkit.Eventually(t, time.Minute, "the server counts the dead rows", func() bool {
		s := look(t, ordinary, fmt.Sprintf("%q.ours", db.Schema))
		return s.DeadRows == 500 && slices.ContainsFunc(s.Holders, func(h postgres.Holder) bool {
			return strings.Contains(h.What, fmt.Sprint(holder.PgConn().PID()))
		})
	})
}

// A session whose snapshots follow each other holds back nothing for long: each is another holder.
func TestASnapshotThatMovesOnIsAnotherHolder(t *testing.T) {
	t.Parallel()
	server := testkit.PostgresServer(t, local.PostgresConfig{}) // where nobody else writes
	db := testkit.Postgres(t, testkit.OnServer(server))
	db.Exec(`CREATE TABLE ours (id int)`)
	reader := db.Connect()
	snapshot := func() string {
		t.Helper()
		for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM ours"} {
			if _, err := reader.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		return holder0(t, db).ID
	}
	first := snapshot()
	if _, err := reader.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	db.Exec(`INSERT INTO ours VALUES (1)`)
	if second := snapshot(); second == first {
		t.Errorf("a newer snapshot of the same session is the same holder %q", second)
	}
	if _, err := reader.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), "BEGIN"); err != nil { // without a snapshot
		t.Fatal(err)
	}
	if left := look(t, db, "ours").Holders; len(left) != 0 {
		t.Errorf("holders %+v while nobody has a snapshot or an id", left)
	}
}
