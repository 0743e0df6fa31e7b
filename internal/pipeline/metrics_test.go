package pipeline_test

import (
	_ "embed" // for docsHead
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/telemetry"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// metricName is a metric in an expression, with the name of the label that it is chosen by.
var metricName = regexp.MustCompile(`\b(postrider_[a-z_]+)(?:\{([a-z_]+)=)?`)

const docsFile = "../../docs/metrics.md"

// docsHead is what docs/metrics.md says before its tables.
//
//go:embed testdata/metrics_head.md
var docsHead string

// registered lists what each kind of process registers.
func registered(t *testing.T) []catalogue {
	t.Helper()
	var out []catalogue
	for _, part := range []struct {
		title    string
		register func(*telemetry.Catalog) error
	}{
		{"Relay", func(c *telemetry.Catalog) error { relay.NewMetrics(c); return nil }},
		{"Consumer", func(c *telemetry.Catalog) error { _, err := consumer.NewMetrics(c); return err }},
		{"Manager", func(c *telemetry.Catalog) error { _, err := controller.NewGauges(c); return err }},
		{"All", func(c *telemetry.Catalog) error { return telemetry.RegisterBuild(c, telemetry.Build{}) }},
	} {
		var c telemetry.Catalog
		if err := part.register(&c); err != nil {
			t.Fatal(err)
		}
		out = append(out, catalogue{part.title, c.Metrics()})
	}
	return out
}

type catalogue struct {
	title   string
	metrics []telemetry.Metric
}

// TestDocsListEveryMetric keeps docs/metrics.md what the code registers.
func TestDocsListEveryMetric(t *testing.T) {
	t.Parallel()
	want := docsHead
	for _, part := range registered(t) {
		want += "\n## " + part.title + "\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
		for _, m := range part.metrics {
			if !strings.HasPrefix(m.Name, "postrider_") || m.Type == "unknown" || m.Help == "" {
				t.Errorf("metric %+v has no prefix, type or meaning", m)
			}
			if m.Type == "counter" != strings.HasSuffix(m.Name, "_total") {
				t.Errorf("%s is a %s", m.Name, m.Type)
			}
			want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels, ", "), m.Help)
		}
	}
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/metrics.md is not current, run make generate:\n%s", diff)
	}
}

// An alert that names a metric or a label that is not there never fires.
func TestExampleAlertsNameMetricsThatAreThere(t *testing.T) {
	t.Parallel()
	labels := make(map[string][]string)
	for _, part := range registered(t) {
		for _, m := range part.metrics {
			labels[m.Name] = m.Labels
		}
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr string
				For         string
			}
		}
	}
	blocks := strings.Split(docsHead, "```yaml\n")
	text, _, _ := strings.Cut(blocks[len(blocks)-1], "```")
	if err := yaml.UnmarshalStrict([]byte(text), &rules); err != nil {
		t.Fatalf("the rules cannot be read: %v", err)
	}
	seen := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			seen++
			names := metricName.FindAllStringSubmatch(rule.Expr, -1)
			if rule.Alert == "" || len(names) == 0 {
				t.Errorf("alert %q names no metric: %s", rule.Alert, rule.Expr)
			}
			for _, name := range names {
				known, ok := labels[name[1]]
				if !ok {
					t.Errorf("alert %s: there is no metric %s", rule.Alert, name[1])
				}
				if name[2] != "" && !slices.Contains(known, name[2]) {
					t.Errorf("alert %s: metric %s has no label %s", rule.Alert, name[1], name[2])
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d alerts, want some", seen)
	}
}
