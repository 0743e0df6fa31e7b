package testkit

import (
	"testing"

	"github.com/postrider/postrider/test/brokers"
)

// PgBouncer starts a PgBouncer in transaction mode for this test alone.
func PgBouncer(t testing.TB, cfg brokers.PgBouncerConfig) *brokers.PgBouncer {
	t.Helper()
	pooler, err := brokers.StartPgBouncer(t.Context(), cfg)
	if err != nil {
		t.Fatalf("starting PgBouncer: %v", err)
	}
	t.Cleanup(func() { stopWithin(t, pooler.Stop) })
	return pooler
}
