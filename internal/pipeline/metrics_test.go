package pipeline_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/telemetry"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

const docsFile = "../../docs/metrics.md"

const docsHead = `# Metrics

<!-- Generated from the code by make generate. Do not edit. -->

Every worker serves these at ` + "`/metrics`" + `, beside those of the Go runtime (` + "`go_*`" + `) and of the process
(` + "`process_*`" + `). Names, types and labels are API: they change only with an entry in the changelog. Labels are closed
sets; the resource's namespace and name come from the scraper's relabelling. No label ever holds a key, an id, a
destination or the text of an error.

The manager serves its own at ` + "`/metrics`" + ` too, over HTTPS to who may read them, beside those of
controller-runtime: one sample a resource, labelled with its kind, namespace and name. What nobody knows has no sample.
`

// TestDocsListEveryMetric keeps docs/metrics.md what the code registers.
func TestDocsListEveryMetric(t *testing.T) {
	t.Parallel()
	want := docsHead
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
		want += "\n## " + part.title + "\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
		for _, m := range c.Metrics() {
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
