package up

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/config/crd"
)

//nolint:gochecknoglobals // the testing package wants flags before tests
var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

func conditionOf(kind, status, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message}
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// busy is a view with everything known of one relay and nothing of another.
func busy() *view {
	replicas := int32(2)
	oldest := metav1.NewTime(noon.Add(-90 * time.Second))
	known := v1alpha1.OutboxRelay{ObjectMeta: named("shop", "orders")}
	known.Status.Backlog = &v1alpha1.Backlog{
		Messages: new(int64(100001)), Precision: v1alpha1.PrecisionAtLeast, OldestMessageTime: &oldest,
	}
	known.Status.Rates = &v1alpha1.RelayRates{PublishedPerSecond: new(int64(3200))}
	known.Status.DeadLetters = &v1alpha1.DeadLetterCount{Open: new(int64(0))}
	known.Status.Destination, known.Status.Replicas = "nats/orders.events", &replicas
	known.Status.Conditions = []metav1.Condition{
		conditionOf("Ready", "True", "Ready", ""),
		conditionOf("TargetMayDiscard", "True", "FewReplicas", "stream ORDERS has 1 replica(s)"),
		conditionOf("Reconciling", "True", "Progressing", "not for a laptop"),
	}
	started := v1alpha1.OutboxRelay{ObjectMeta: named("shop", "audit")}
	started.Status.Conditions = []metav1.Condition{conditionOf("Ready", "Unknown", "Starting", "")}

	behind := v1alpha1.InboxConsumer{ObjectMeta: named("shop", "billing")}
	behind.Spec.Inbox.Postgres.Database = "billing"
	behind.Status.Lag = &v1alpha1.Lag{Messages: new(int64(7)), OldestMessageTime: &oldest}
	behind.Status.Inbox = &v1alpha1.InboxStatus{Parked: new(int64(3)), Gaps: new(int64(1))}
	behind.Status.DeadLetters = &v1alpha1.DeadLetterCount{Open: new(int64(2))}
	behind.Status.Source, behind.Status.Replicas = "nats/ORDERS", &replicas
	behind.Status.Conditions = []metav1.Condition{
		conditionOf("Ready", "False", "StatementInvalid", "the database does not accept route 0 (SQLSTATE 42P01)"),
		conditionOf(
			"SchemaReady",
			"False",
			"StatementInvalid",
			"the database does not accept route 0 (SQLSTATE 42P01)",
		),
		conditionOf("DeadLettersHealthy", "False", "OpenDeadLetters", "2 dead letters are open"),
		conditionOf("InsecureTransport", "True", "PlainText", "plain text"),
	}
	return &view{
		now: noon, started: noon.Add(-5 * time.Minute),
		relays: []v1alpha1.OutboxRelay{known, started}, consumers: []v1alpha1.InboxConsumer{behind},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	v := busy()
	if err := v.writeTable(&b); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n" + strings.Join(v.trouble(), "\n") + "\n\nas lines:\n" + strings.Join(v.rows(), "\n") + "\n")
	v.embedded = true
	b.WriteString("\nembedded:\n" + strings.Join(v.trouble(), "\n") + "\n")
	golden(t, "table.txt", b.String())
}

func TestNamespacesAreShownWhereThereAreSeveral(t *testing.T) {
	t.Parallel()
	v := busy()
	if got := v.title(&v.relays[0]); got != "orders" {
		t.Errorf("title in one namespace = %q", got)
	}
	v.consumers[0].Namespace = "finance"
	for want, got := range map[string]string{
		"shop/orders": v.title(&v.relays[0]), "finance/billing": v.title(&v.consumers[0]),
	} {
		if got != want {
			t.Errorf("title = %q, want %q", got, want)
		}
	}
}

// TestColumnsAreKubectls compares the table's columns with those of the resources' definitions.
func TestColumnsAreKubectls(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := busy().writeTable(&b); err != nil {
		t.Fatal(err)
	}
	for kind, headers := range columnsOf(t) {
		line := ""
		for l := range strings.Lines(b.String()) {
			if strings.HasPrefix(l, kind) {
				line = strings.TrimSpace(l)
			}
		}
		want := append([]string{kind}, headers...)
		if diff := cmp.Diff(append(want, "RATE"), strings.Fields(line)); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", kind, diff)
		}
	}
}

// columnsOf returns the columns that kubectl get shows without -o wide, by kind.
func columnsOf(t *testing.T) map[string][]string {
	t.Helper()
	entries, err := crd.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	columns := make(map[string][]string)
	for _, e := range entries {
		raw, err := crd.Files.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var def apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &def); err != nil {
			t.Fatal(err)
		}
		kind := strings.ToUpper(def.Spec.Names.Kind)
		for _, c := range def.Spec.Versions[0].AdditionalPrinterColumns {
			if c.Priority == 0 {
				columns[kind] = append(columns[kind], strings.ToUpper(c.Name))
			}
		}
	}
	if len(columns["OUTBOXRELAY"]) == 0 || len(columns["INBOXCONSUMER"]) == 0 {
		t.Fatalf("columns = %v", columns)
	}
	return columns
}
