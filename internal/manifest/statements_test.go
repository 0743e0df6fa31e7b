package manifest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A worker refuses such routes when it starts: whoever validates a file has to be told before.
func TestStatementsThatNoWorkerTakesAreReportedWithTheirLine(t *testing.T) {
	t.Parallel()
	const at = "f.yaml:16: spec.handler.sql.routes[1].statement: "
	const begin = "the statement must start with INSERT, UPDATE, DELETE, MERGE, SELECT, WITH, CALL (at byte 1)"
	cases := map[string]struct {
		statement string
		want      []string
	}{
		"one that a worker takes":    {"INSERT INTO t (a) VALUES (@event_id)", nil},
		"the end of the transaction": {"COMMIT", []string{at + begin}},
		"another role":               {"SET ROLE postgres", []string{at + begin}},
		"a word that is no verb":     {"INSRT INTO t", []string{at + begin}},
		"two statements": {
			"SELECT 1; COMMIT", []string{at + "one statement only: nothing may follow the semicolon (at byte 11)"},
		},
		"a quote that is never closed": {"SELECT 'a", []string{at + "a text in quotes does not end (at byte 8)"}},
		"a parameter that is not there": {
			"SELECT @nothing",
			[]string{at + "there is no parameter @nothing; for the absolute value use abs() (at byte 8)"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := load(t, fmt.Sprintf(`apiVersion: postrider.dev/v1alpha1
kind: InboxConsumer
metadata: {name: billing}
spec:
  consumerName: billing
  source:
    nats: {servers: ["nats:4222"], stream: ORDERS, credentialsSecretRef: {name: db}}
  inbox:
    schemaPolicy: Verify
    postgres: {hosts: [db], database: billing, credentialsSecretRef: {name: db}}
  handler:
    sql:
      routes:
        - {eventTypes: [a], statement: SELECT 1}
        - eventTypes: [b]
          statement: %q
  ordering: {mode: None}
---
apiVersion: v1
kind: Secret
metadata: {name: db}
stringData: {username: u, password: p}
`, tc.statement))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("problems differ (-want +got):\n%s", diff)
			}
		})
	}
}
