package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/test/testkit"
)

const samplesDir = "../../config/samples"

// embedded is a run of the samples with servers of its own, as a process, in folders of the test.
type embedded struct {
	*upRun
	data      string
	temporary string
}

func startEmbedded(t *testing.T, dir string, args ...string) *embedded {
	t.Helper()
	return startSamples(t, samplesDir, dir, args...)
}

// startSamples runs a folder of samples with servers of its own.
func startSamples(t *testing.T, samples, dir string, args ...string) *embedded {
	t.Helper()
	e := &embedded{data: filepath.Join(dir, "data"), temporary: filepath.Join(dir, "tmp")}
	if err := os.MkdirAll(e.temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	e.upRun = startProgram(t, e.temporary, append([]string{
		"-f", samples, "--data", e.data, "--init", "orders=../../internal/shop/orders.sql",
		"--init", "billing=../../internal/shop/billing.sql",
	}, args...)...)
	return e
}

// database connects to an embedded database as its owner.
func (e *embedded) database(name, password string) *pgx.Conn {
	e.t.Helper()
	endpoints, err := up.ReadEndpoints(e.data)
	if err != nil {
		e.t.Fatal(err)
	}
	conn, err := pgx.Connect(e.t.Context(), "postgres://"+name+"_owner:"+password+"@"+endpoints.Postgres+"/"+name)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close(e.t.Context()) }) // the server may be gone
	return conn
}

// order commits the steps of an order, and returns how many.
func (e *embedded) order(id string) int {
	e.t.Helper()
	const orderSQL = `SELECT w.id FROM unnest('{placed,paid,shipped}'::text[]) AS state,
		message_outbox_write($1, 'order.' || state,
			convert_to(jsonb_build_object('state', state, 'amount', 10)::text, 'UTF8'), 'shop') AS w`
	if _, err := e.database("orders", "sample-orders-owner").Exec(e.t.Context(), orderSQL, id); err != nil {
		e.t.Fatal(err)
	}
	return 3
}

// applied waits until the ledger has this many entries.
func (e *embedded) applied(entries int) {
	e.t.Helper()
	billing := e.database("billing", "sample-billing-owner")
	testkit.Eventually(e.t, upPatience, strconv.Itoa(entries)+" messages are applied", func() bool {
		var n int
		err := billing.QueryRow(e.t.Context(), "SELECT count(*) FROM ledger").Scan(&n)
		return err == nil && n == entries
	})
}

// processes returns the running programs whose command line names a folder.
func processes(t *testing.T, folder string) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), folder) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func TestUpLeavesNothingBehindAfterCtrlC(t *testing.T) {
	t.Parallel()
	dir := testkit.SharedDir(t)
	e := startEmbedded(t, dir)
	e.isReady()
	e.applied(e.order("order-1"))
	if len(processes(t, dir)) == 0 && runtime.GOOS == "linux" {
		t.Fatal("no process of it was found while it runs")
	}
	e.interrupt("sample-")

	out := e.out.String()
	for _, want := range []string{
		"\noutboxrelay/orders: 3 published\n", "\ninboxconsumer/billing: 3 applied, 0 duplicates without effect\n",
		"\ndata in " + e.data + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it did not say %q", want)
		}
	}
	if left := processes(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if left, err := os.ReadDir(e.temporary); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	if _, err := up.ReadEndpoints(e.data); err == nil {
		t.Error("the endpoints are still there")
	}
	e.checkGivenBack()
}

// checkGivenBack looks into the database of a run that has ended.
func (e *embedded) checkGivenBack() {
	e.t.Helper()
	server, err := local.StartPostgres(e.t.Context(), local.PostgresConfig{Dir: filepath.Join(e.data, "postgres")})
	if err != nil {
		e.t.Fatal(err)
	}
	defer server.Stop(e.t.Context()) //nolint:errcheck // the test is over
	conn, err := pgx.Connect(e.t.Context(), server.URL("orders"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(e.t.Context()) //nolint:errcheck // the test is over
	var held, waiting int
	const leftSQL = `SELECT (SELECT count(*) FROM message_outbox_lease WHERE holder IS NOT NULL),
		(SELECT count(*) FROM message_outbox)`
	if err := conn.QueryRow(e.t.Context(), leftSQL).Scan(&held, &waiting); err != nil {
		e.t.Fatal(err)
	}
	if held != 0 || waiting != 0 {
		e.t.Errorf("%d leases are held and %d messages wait", held, waiting)
	}
}

func TestUpStartsServersAgainThatAreLost(t *testing.T) {
	t.Parallel()
	e := startEmbedded(t, testkit.SharedDir(t))
	e.isReady()
	written := e.order("order-1")
	e.applied(written)
	for name, file := range map[string]string{
		"PostgreSQL": filepath.Join(e.data, "postgres", "data", "postmaster.pid"),
		"NATS":       filepath.Join(e.data, "nats", "ready"),
	} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.SplitN(string(content), "\n", 2)[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		e.says("the embedded " + name + " is lost, trying to start it again: ")
		e.says("the embedded " + name + " runs again")
		written += e.order("order-after-" + name)
		e.applied(written)
	}
	e.interrupt("sample-")
}

func TestUpRefusesADataFolderInUse(t *testing.T) {
	t.Parallel()
	dir := testkit.SharedDir(t)
	e := startEmbedded(t, dir)
	e.says("Ctrl-C drains and ends")
	code, _, errs := call(t, "up", "-f", samplesDir, "--data", e.data)
	want := "postrider: --data " + e.data +
		": another `postrider up` uses this folder: end it, or choose another folder\n"
	if code != 1 || errs != want {
		t.Errorf("a second run = %d, %q, want 1 and %q", code, errs, want)
	}
	e.interrupt("sample-")
}

func TestUpEndsAtOnceWhileItStarts(t *testing.T) {
	t.Parallel()
	dir := testkit.SharedDir(t)
	e := startEmbedded(t, dir)
	e.says("starting an embedded PostgreSQL and NATS")
	e.interrupt("sample-")
	if left := processes(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if left, err := os.ReadDir(e.temporary); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestUpTellsANewcomerOfTheServicesOwnTables(t *testing.T) {
	t.Parallel()
	u := startUp(t, "-f", samplesDir)
	u.says("outboxrelay/orders ", " ready=True ")
	hint := "; --init billing=FILE makes your service's own tables in the embedded database"
	u.says("inboxconsumer/billing ", "is not ready: StatementInvalid: ", hint)
	u.interrupt("sample-")
	u.saysOnce("inboxconsumer/billing", hint)
	for _, told := range []string{"InsecureTransport", "TargetMayDiscard"} {
		if strings.Contains(u.out.String(), told) {
			t.Errorf("%s is the servers' doing and was told at the start", told)
		}
	}
}

// The same shop over Kafka: the stand-in takes the logins of the Secrets, and a later run goes on with what is kept.
func TestUpRunsTheSamplesOfKafka(t *testing.T) {
	t.Parallel()
	dir := testkit.SharedDir(t)
	const samples = samplesDir + "/kafka"
	first := startSamples(t, samples, dir)
	first.says("PostgreSQL and Kafka of this machine stand in")
	first.isReady()
	written := first.order("order-1")
	first.applied(written)
	first.interrupt("sample-")
	if got := strings.Count(first.out.String(), " kafka/orders.events "); got != 2 {
		t.Errorf("the last table names the topic %d times, want it for both resources", got)
	}

	second := startSamples(t, samples, dir)
	second.isReady()
	written += second.order("order-1")
	second.applied(written)
	code, report, errs := call(t, "verify", "-f", samples, "--data", second.data, "--grace", "0s",
		"--effects", "ledger:order_id:version:entry")
	if code != 0 || !strings.Contains(report, "every published row is where its broker position says") {
		t.Errorf("verify = %d, %s\n%s", code, errs, report)
	}
	second.interrupt("sample-")
	if out := second.out.String(); !strings.Contains(out, "inboxconsumer/billing: 3 applied, 0 duplicates") {
		t.Error("the second run did not go on where the first had ended")
	}
}
