package outbox_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// The clients that the programs of docs/writers.md are run with.
const (
	psycopgVersion      = "3.3.9"
	nodePostgresVersion = "8.23.1"
	pgjdbcVersion       = "42.7.8"
)

// blocks returns the code blocks of docs/writers.md in one language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	page, err := os.ReadFile("../docs/writers.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for i, part := range strings.Split("\n"+string(page), "\n```") {
		if code, ok := strings.CutPrefix(part, language+"\n"); ok && i%2 == 1 {
			found = append(found, code)
		}
	}
	return found
}

// oneBlock returns the only code block of docs/writers.md in a language.
func oneBlock(t *testing.T, language string) string {
	t.Helper()
	all := blocks(t, language)
	if len(all) != 1 {
		t.Fatalf("docs/writers.md has %d blocks of %s, want 1", len(all), language)
	}
	return all[0]
}

// orders is the outbox with the table that the page's programs change.
func orders(t *testing.T) *tables {
	t.Helper()
	d := newTables(t)
	d.Exec(`CREATE TABLE orders (id bigint PRIMARY KEY, state text NOT NULL)`)
	d.Exec(`INSERT INTO orders VALUES (42, 'placed')`)
	return d
}

// wrote checks what each of the page's programs does: the change and its message, in one transaction.
func (d *tables) wrote() {
	d.t.Helper()
	if state := testkit.Value[string](d.DB, `SELECT state FROM orders`); state != "paid" {
		d.t.Errorf("the order is %q, want paid", state)
	}
	const message = `
SELECT concat_ws(' ', ordering_key, event_type, source, aggregate_version, convert_from(payload, 'UTF8')::jsonb)
FROM message_outbox`
	want := `order-42 order.paid shop 1 {"order": 42, "amount": 1999}`
	if got := testkit.Values[string](d.DB, message); len(got) != 1 || got[0] != want {
		d.t.Errorf("the outbox has %q, want %q", got, want)
	}
	one := `SELECT count(DISTINCT xmin::text) FROM (SELECT xmin FROM orders UNION ALL SELECT xmin FROM message_outbox) x`
	if n := testkit.Value[int64](d.DB, one); n != 1 {
		d.t.Errorf("the change and its message come from %d transactions, want one", n)
	}
}

// libpqURL is the connection string for clients that follow libpq.
func (d *tables) libpqURL() string {
	return fmt.Sprintf(
		"postgres://%s:%s@%s/%s?sslmode=disable&options=%s",
		d.User,
		d.Password,
		d.Addr(),
		d.Database,
		strings.ReplaceAll(url.QueryEscape("-c search_path="+d.Schema), "+", "%20"),
	)
}

func (d *tables) jdbcURL() string {
	return fmt.Sprintf("jdbc:postgresql://%s/%s?user=%s&password=%s&currentSchema=%s",
		d.Addr(), d.Database, d.User, d.Password, d.Schema)
}

// fetched returns a folder of the cache that the command fills the first time. PARTIAL in its arguments is the folder.
func fetched(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	dir, err := local.Cached(t.Context(), folder, func(ctx context.Context, dir string) error {
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "PARTIAL", dir)
		}
		command(ctx, t, dir, nil, name, args...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// command runs a command in a folder; its output is shown when it fails.
func command(ctx context.Context, t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // the first time it downloads
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheSQLOfTheDocsWritesAMessage(t *testing.T) {
	t.Parallel()
	all := blocks(t, "sql")
	if len(all) == 0 {
		t.Fatal("docs/writers.md has no SQL")
	}
	for _, block := range all {
		d := orders(t)
		if _, err := d.Connect().PgConn().Exec(t.Context(), block).ReadAll(); err != nil {
			t.Fatalf("%v in\n%s", err, block)
		}
		d.wrote()
	}
}

func TestWithPythonTheProgramOfTheDocsWritesAMessage(t *testing.T) {
	t.Parallel()
	code := oneBlock(t, "python")
	packages := fetched(t, "writers-python-psycopg-"+psycopgVersion,
		"python3", "-m", "pip", "install", "-q", "--target", "PARTIAL", "psycopg[binary]=="+psycopgVersion)
	d := orders(t)
	program := filepath.Join(t.TempDir(), "writer.py")
	writeFile(t, program, code)
	env := []string{"DATABASE_URL=" + d.libpqURL(), "PYTHONPATH=" + packages}
	command(t.Context(), t, t.TempDir(), env, "python3", program)
	d.wrote()
}

func TestWithNodeTheProgramOfTheDocsWritesAMessage(t *testing.T) {
	t.Parallel()
	code := oneBlock(t, "js")
	modules := fetched(t, "writers-node-pg-"+nodePostgresVersion,
		"npm", "install", "--silent", "--no-audit", "--no-fund", "--cache", "PARTIAL/cache", "--prefix", "PARTIAL",
		"pg@"+nodePostgresVersion)
	d := orders(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "writer.mjs"), code)
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	command(t.Context(), t, dir, []string{"DATABASE_URL=" + d.libpqURL()}, "node", "writer.mjs")
	d.wrote()
}

func TestWithJavaTheProgramOfTheDocsWritesAMessage(t *testing.T) {
	t.Parallel()
	code := oneBlock(t, "java")
	// Not everybody has a home that can be written, where Maven would keep what it fetches.
	libraries := fetched(t, "writers-java-pgjdbc-"+pgjdbcVersion,
		"mvn", "-q", "-B", "dependency:copy", "-Dmdep.stripVersion=true", "-DoutputDirectory=PARTIAL",
		"-Dartifact=org.postgresql:postgresql:"+pgjdbcVersion, "-Dmaven.repo.local=PARTIAL/repository")
	d := orders(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Writer.java"), code)
	command(t.Context(), t, dir, []string{"JDBC_URL=" + d.jdbcURL()},
		"java", "-cp", filepath.Join(libraries, "postgresql.jar"), "Writer.java")
	d.wrote()
}
