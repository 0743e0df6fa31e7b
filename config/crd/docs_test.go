package crd_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/config/crd"
	"github.com/postrider/postrider/internal/broker"
)

var update = flag.Bool("update", false, "write docs/api.md")

const docsFile = "../../docs/api.md"

const docsHead = `# API

<!-- Generated from api/v1alpha1 and config/crd by make generate. Do not edit. -->

The resources of ` + "`postrider.dev/v1alpha1`" + `. ` + "`kubectl explain`" + ` says the same of each field, and ` +
	"`postrider validate`" + `
holds a file to the same rules. Examples are in [config/samples](../config/samples); what the columns show in each state
is in [kubectl.md](kubectl.md). A field in bold is required.
`

// elsewhere are fields of Kubernetes' own types, which its documentation describes.
var elsewhere = []string{
	"spec.workload.affinity", "spec.workload.tolerations", "spec.workload.topologySpreadConstraints",
	"spec.workload.resources", "status.conditions",
}

// TestDocsDescribeTheResources keeps docs/api.md what the definitions say.
func TestDocsDescribeTheResources(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString(docsHead)
	names, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) }) // a message's way: relay, consumer
	for _, name := range names {
		raw, err := crd.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &definition); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		describeKind(t, &out, &definition)
	}
	describeConditions(t, &out)
	if *update {
		if err := os.WriteFile(docsFile, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if diff := cmp.Diff(out.String(), string(got)); diff != "" {
		t.Errorf("docs/api.md is not current, run make generate (-want +got):\n%s", diff)
	}
}

func describeKind(t *testing.T, out *strings.Builder, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	version := d.Spec.Versions[0]
	schema := version.Schema.OpenAPIV3Schema
	fmt.Fprintf(
		out,
		"\n## %s\n\n%s\n\nShort name `%s`, category `%s`.\n",
		d.Spec.Names.Kind,
		oneLine(schema.Description),
		strings.Join(d.Spec.Names.ShortNames, "`, `"),
		strings.Join(d.Spec.Names.Categories, "`, `"),
	)
	out.WriteString("\n### Columns\n\n| column | shown | from | meaning |\n|---|---|---|---|\n")
	for _, c := range version.AdditionalPrinterColumns {
		shown := "always"
		if c.Priority > 0 {
			shown = "with -o wide"
		}
		fmt.Fprintf(
			out,
			"| %s | %s | `%s` | %s |\n",
			strings.ToUpper(c.Name),
			shown,
			cell(c.JSONPath),
			cell(c.Description),
		)
	}
	for _, part := range []string{"spec", "status"} {
		properties := schema.Properties[part]
		fmt.Fprintf(out, "\n### %s\n\n%s\n", part, meaning(&properties))
		out.WriteString("\n| field | type | default | meaning |\n|---|---|---|---|\n")
		describeFields(t, out, part, &properties)
	}
}

// describeFields writes a line a field, and those of an object after it.
func describeFields(t *testing.T, out *strings.Builder, path string, s *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		at := path + "." + name
		if p.Description == "" {
			t.Errorf("%s has no description", at)
		}
		shown := "`" + at + "`"
		if slices.Contains(s.Required, name) {
			shown = "**" + shown + "**"
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", shown, typeOf(&p), defaultOf(&p), meaning(&p))
		switch {
		case slices.Contains(elsewhere, at):
		case p.Items != nil:
			describeFields(t, out, at+"[]", p.Items.Schema)
		default:
			describeFields(t, out, at, &p)
		}
	}
}

func typeOf(p *apiextensionsv1.JSONSchemaProps) string {
	var text string
	switch {
	case p.XIntOrString:
		text = "quantity"
	case len(p.Enum) > 0:
		var words []string
		for _, v := range p.Enum {
			words = append(words, strings.Trim(string(v.Raw), `"`))
		}
		text = strings.Join(words, ", ")
	case p.Type == "array":
		item, _, _ := strings.Cut(typeOf(p.Items.Schema), ",")
		text = "list of " + item
	case p.AdditionalProperties != nil:
		text = "map of " + typeOf(p.AdditionalProperties.Schema)
	case isDuration(p):
		return "duration"
	case p.Format == "date-time":
		text = "time"
	case p.Type == "string":
		text = "text"
	default:
		text = p.Type
	}
	return text + limits(p)
}

// isDuration says whether a text is one of api/v1alpha1.Duration.
func isDuration(p *apiextensionsv1.JSONSchemaProps) bool {
	return slices.ContainsFunc(p.XValidations, func(rule apiextensionsv1.ValidationRule) bool {
		return strings.HasPrefix(rule.Message, "must be a duration")
	})
}

// limits are those that a person should know of; that an optional text is not empty, or a count not negative, is none.
func limits(p *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		return fmt.Sprintf(", %s to %s", whole(*p.Minimum), whole(*p.Maximum))
	case p.MaxItems != nil:
		return fmt.Sprintf(", at most %d", *p.MaxItems)
	case p.MaxLength != nil && len(p.Enum) == 0:
		return fmt.Sprintf(", at most %d characters", *p.MaxLength)
	default:
		return ""
	}
}

func whole(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func defaultOf(p *apiextensionsv1.JSONSchemaProps) string {
	if p.Default == nil {
		return ""
	}
	var value any
	if err := json.Unmarshal(p.Default.Raw, &value); err != nil {
		return string(p.Default.Raw)
	}
	switch v := value.(type) {
	case string:
		return "`" + v + "`"
	case map[string]any:
		if len(v) == 0 {
			return ""
		}
	}
	return "`" + string(p.Default.Raw) + "`"
}

// meaning is the description with the rules that its text does not say.
func meaning(p *apiextensionsv1.JSONSchemaProps) string {
	text := oneLine(p.Description)
	for _, rule := range p.XValidations {
		if rule.Message != "" && !strings.HasPrefix(rule.Message, "must be a duration") &&
			!strings.Contains(text, strings.TrimPrefix(rule.Message, "must be ")) {
			text += " Rule: " + rule.Message + "."
		}
	}
	return cell(text)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell is a text as a table takes it.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(s)
}

// describeConditions writes the types and reasons as their constants are documented.
func describeConditions(t *testing.T, out *strings.Builder) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/conditions.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out.WriteString("\n## Conditions\n")
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		fmt.Fprintf(out, "\n%s\n\n| word | meaning |\n|---|---|\n", oneLine(group.Doc.Text()))
		for _, spec := range group.Specs {
			named := spec.(*ast.ValueSpec)
			word, err := strconv.Unquote(named.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.TrimPrefix(oneLine(named.Doc.Text()), named.Names[0].Name+" ")
			fmt.Fprintf(out, "| `%s` | %s |\n", word, cell(text))
		}
	}
}

// Whoever sees a reason of a broker, in a condition or with a dead letter, must find what it means.
func TestEveryReasonOfABrokerIsExplained(t *testing.T) {
	t.Parallel()
	var explained strings.Builder
	for _, path := range []string{"../../docs/api.md", "../../docs/dead-letters.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		explained.Write(text)
	}
	unseen := []broker.Reason{
		broker.ReasonNoCredentials, // a condition says SecretNotFound
		broker.ReasonNotSent,       // another message's reason is told
	}
	for _, reason := range broker.Reasons() {
		if !slices.Contains(unseen, reason) && !strings.Contains(explained.String(), "`"+string(reason)+"`") {
			t.Errorf("no document explains %s", reason)
		}
	}
}
