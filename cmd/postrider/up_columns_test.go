package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/test/testkit"
)

// layoutsSQL returns the block of docs/layouts.md that begins with some words.
func layoutsSQL(t *testing.T, begin string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/layouts.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(page), "```")[1:] {
		if sql, ok := strings.CutPrefix(block, "sql"); ok && strings.HasPrefix(strings.TrimSpace(sql), begin) {
			return strings.TrimSpace(sql)
		}
	}
	t.Fatalf("docs/layouts.md has no block %q", begin)
	return ""
}

// What docs/layouts.md says about the sample of a table that the team has is so, word for word.
func TestUpRunsTheSampleOfATableThatTheTeamHas(t *testing.T) {
	t.Parallel()
	dir := testkit.SharedDir(t)
	e := &embedded{data: filepath.Join(dir, "data"), temporary: filepath.Join(dir, "tmp")}
	if err := os.MkdirAll(e.temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	files := []string{
		"-f", samplesDir + "/existing-tables/orders-relay.yaml", "-f", samplesDir + "/secrets.yaml", "--data", e.data,
	}
	e.upRun = startProgram(t, e.temporary, files...)
	e.says("outbox_event", "does not exist")
	orders := e.database("orders", "sample-orders-owner")
	for _, block := range []string{"CREATE TABLE outbox_event", "CREATE INDEX CONCURRENTLY"} {
		if _, err := orders.Exec(t.Context(), layoutsSQL(t, block)); err != nil {
			t.Fatalf("%s: %v", block, err)
		}
	}
	testkit.Eventually(t, upPatience, "the row is published", func() bool {
		var published bool
		err := orders.QueryRow(t.Context(), `SELECT bool_and(status = 'published') FROM outbox_event`).Scan(&published)
		return err == nil && published
	})
	code, stdout, stderr := call(t, append([]string{"verify"}, files...)...)
	if code != 0 || !strings.Contains(stdout, "relay shop/orders") {
		t.Errorf("verify = %d, %s%s", code, stdout, stderr)
	}
	e.interrupt("sample-")
}
