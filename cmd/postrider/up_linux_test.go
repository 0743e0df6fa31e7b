package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/test/testkit"
)

func TestAsRootUpSaysThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	dir := testkit.Disk(t, "size=8m")
	code, out, errs := call(t, "up", "-f", samplesDir, "--data", filepath.Join(dir, "data"))
	if code != 1 || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no space left on the device of "+dir) ||
		!strings.Contains(errs, "free about 200 MB there, or choose another folder") {
		t.Errorf("up = %d, %q, %q, want 1 and one line that says what to do", code, out, errs)
	}
}

func TestAsRootUpRecoversFromAFullDisk(t *testing.T) {
	t.Parallel()
	dir := testkit.Disk(t, "size=256m")
	e := startEmbedded(t, dir)
	e.isReady()
	written := e.order("order-1")
	e.applied(written)
	free := testkit.Fill(t, dir)

	lost := "the embedded PostgreSQL is lost, trying to start it again: no space left on the device of " +
		filepath.Join(e.data, "postgres") + " for the embedded PostgreSQL: free about 200 MB there"
	testkit.Eventually(t, upPatience, "a log that cannot grow ends the database", func() bool {
		e.growLog()
		return lineWith(e.out.String(), lost) != ""
	})
	e.says("outboxrelay/orders is not ready: ")
	e.says("inboxconsumer/billing is not ready: ")
	free()
	e.says("the embedded PostgreSQL runs again")
	written += e.order("order-2")
	e.applied(written)
	e.interrupt("sample-")
	e.saysOnce(lost, "")
}

// growLog makes the database's log grow by some segments. The database may end of it.
func (e *embedded) growLog() {
	endpoints, err := up.ReadEndpoints(e.data)
	if err != nil {
		e.t.Fatal(err)
	}
	conn, err := pgx.Connect(e.t.Context(), "postgres://orders_owner:sample-orders-owner@"+endpoints.Postgres+"/orders")
	if err != nil {
		return // it has ended, or is on its way up
	}
	defer conn.Close(e.t.Context()) //nolint:errcheck // it may be gone
	const growSQL = `SELECT pg_logical_emit_message(false, 'growth', repeat('x', 10000000)) FROM generate_series(1, 10)`
	_, _ = conn.Exec(e.t.Context(), growSQL) // see above
}
