// Package testkit holds the only helpers that tests of several packages share: real servers, a schema or a stream of
// its own for each test, faults on TCP connections, a logger that can be searched, and a poll with a deadline.
//
// Servers are real. A test binary that is run alone starts them when the first test asks; `go run ./hack/servers run --
// go test ./...` starts them once for all. Nothing here mocks anything, and nothing hides a missing server: the test
// fails and says why.
package testkit

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The variables by which hack/servers names running servers.
const (
	PostgresVariable = "POSTRIDER_TEST_POSTGRES" // a superuser's URL
	NATSVariable     = "POSTRIDER_TEST_NATS"     // a URL
)

// notRun is what a test says that cannot run here.
const notRun = "NOT RUN: needs root"

// pollInterval is how often Eventually looks.
const pollInterval = 5 * time.Millisecond

// cleanupTimeout bounds each step of cleaning up after a test.
const cleanupTimeout = 2 * time.Minute

// NeedsRoot ends a test that only root can run. The name of such a test starts with TestAsRoot: `make test` leaves these
// out where it is not root, and counts them in its last lines, so that none is hidden.
func NeedsRoot(t testing.TB) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestAsRoot") {
		t.Fatal("the name of a test that needs root starts with TestAsRoot")
	}
	if os.Geteuid() != 0 {
		t.Skip(notRun)
	}
}

// Eventually calls cond until it returns true and fails the test when that takes longer than timeout. What says what
// is waited for, as a statement: "the row is published".
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}

// SharedDir returns a folder that other users may pass through, unlike t.TempDir: as root, PostgreSQL runs as another
// user. It is removed when the test ends.
func SharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "postrider-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatalf("making a folder: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing %s: %v", dir, err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatalf("opening %s to other users: %v", dir, err)
	}
	return dir
}

// uniqueName returns a name no other test uses, of lower-case letters, digits and the prefix.
func uniqueName(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text()[:16])
}

// cleanupContext returns a context for a cleanup: the test's own has ended by then.
func cleanupContext(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTimeout)
}

// SecretDir returns a folder as a Secret with a login is mounted: the files username and password.
func SecretDir(tb testing.TB, user, password string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range map[string]string{"username": user, "password": password} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}
