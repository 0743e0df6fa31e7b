package manifest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
)

// rule is one case of a rule: what is changed in the least resource of its kind, and what is then refused.
type rule struct {
	kind string // OutboxRelay where empty
	set  map[string]any
	// refuse is every error, as "field: text"; none where the object is accepted.
	refuse []string
	// update says that the change is made to a stored object.
	update bool
}

// seed reads the least resource of a kind.
func seed(t *testing.T, kind string) map[string]any {
	t.Helper()
	file := "testdata/relay.yaml"
	if kind == v1alpha1.KindInboxConsumer {
		file = "testdata/consumer.yaml"
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	if raw, err = yaml.YAMLToJSONStrict(raw); err != nil {
		t.Fatal(err)
	}
	if err := utiljson.Unmarshal(raw, &obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// change sets a field, making the parts around it; nil takes the field away.
func change(t *testing.T, obj map[string]any, path string, value any) {
	t.Helper()
	way := steps(path)
	var at any = obj
	for _, step := range way[:len(way)-1] {
		at = enter(t, at, step)
	}
	last := way[len(way)-1]
	switch part := at.(type) {
	case map[string]any:
		if value == nil {
			delete(part, last)
			return
		}
		part[last] = plain(t, value)
	case []any:
		i, err := strconv.Atoi(last)
		if err != nil {
			t.Fatal(err)
		}
		part[i] = plain(t, value)
	default:
		t.Fatalf("%s lies in no mapping and no list", path)
	}
}

func enter(t *testing.T, at any, step string) any {
	t.Helper()
	switch part := at.(type) {
	case map[string]any:
		if part[step] == nil {
			part[step] = map[string]any{}
		}
		return part[step]
	case []any:
		i, err := strconv.Atoi(step)
		if err != nil {
			t.Fatal(err)
		}
		return part[i]
	default:
		t.Fatalf("cannot enter %s", step)
		return nil
	}
}

// plain turns a value into what JSON decodes to.
func plain(t *testing.T, value any) any {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := utiljson.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func schemas(t *testing.T) *Schemas {
	t.Helper()
	s, err := LoadSchemas()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// outcome returns what a schema refuses in an object, as "field: text".
func outcome(t *testing.T, s *Schema, old, obj map[string]any) []string {
	t.Helper()
	var got []string
	for _, path := range s.Prune(obj) {
		got = append(got, path+": is not a known field")
	}
	s.Default(obj)
	if old != nil {
		s.Default(old)
	}
	for _, e := range s.Validate(t.Context(), old, obj) {
		got = append(got, e.Field+": "+wording(e))
	}
	slices.Sort(got)
	return got
}

// allRules are the cases of all rules, by what they are about and their sentence.
func allRules(t *testing.T) map[string]rule {
	t.Helper()
	all := make(map[string]rule)
	for about, cases := range map[string]map[string]rule{
		"names": nameRules(), "postgres": postgresRules(), "tls": tlsRules(), "nats": natsRules(),
		"relay": relayRules(), "workload": workloadRules(), "consumer": consumerRules(),
	} {
		for name, tc := range cases {
			if tc.kind == "" {
				tc.kind = v1alpha1.KindOutboxRelay
			}
			all[about+": "+name] = tc
		}
	}
	return all
}

// Each case is checked by the API server's own code; what it accepts must make a configuration that workers accept.
func TestRules(t *testing.T) {
	t.Parallel()
	all := schemas(t)
	for name, tc := range allRules(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ok := all.Kind(tc.kind)
			if !ok {
				t.Fatalf("no schema of %s", tc.kind)
			}
			obj := seed(t, tc.kind)
			for path, value := range tc.set {
				change(t, obj, path, value)
			}
			var old map[string]any
			if tc.update {
				old = seed(t, tc.kind)
			}

			got := outcome(t, s, old, obj)

			slices.Sort(tc.refuse)
			if diff := cmp.Diff(tc.refuse, got); diff != "" {
				t.Fatalf("refused (-want +got):\n%s", diff)
			}
			if len(got) == 0 {
				checkAcceptedByWorkers(t, tc.kind, obj)
			}
		})
	}
}

// A rule without a case that it refuses could be removed, and no test would fail.
func TestEveryRuleOfTheSchemasHasARefusingCase(t *testing.T) {
	t.Parallel()
	var refused []string
	for _, tc := range allRules(t) {
		refused = append(refused, tc.refuse...)
	}
	all := schemas(t)
	for _, kind := range all.Kinds() {
		s, _ := all.Kind(kind)
		spec := s.structural.Properties["spec"]
		for _, want := range constraints("spec", &spec) {
			if !slices.ContainsFunc(refused, func(r string) bool { return strings.HasSuffix(r, want) }) {
				t.Errorf("%s: no case is refused with %q", kind, want)
			}
		}
	}
}

// constraints lists how the errors of a schema's rules end. Fields that Kubernetes defines are its own affair; so is
// the length of texts, which their types bound.
func constraints(name string, s *structural.Structural) []string {
	if slices.Contains([]string{"affinity", "tolerations", "topologySpreadConstraints"}, name) {
		return nil
	}
	var out []string
	for _, rule := range s.XValidations {
		out = append(out, ": "+rule.Message)
	}
	if v := s.ValueValidation; v != nil {
		for _, field := range v.Required {
			out = append(out, "."+field+": must be set")
		}
		if v.Minimum != nil {
			out = append(out, fmt.Sprintf("%s: must be at least %v", name, *v.Minimum))
		}
		if v.Maximum != nil {
			out = append(out, fmt.Sprintf("%s: must be at most %v", name, *v.Maximum))
		}
		if v.MinItems != nil {
			out = append(out, fmt.Sprintf("%s: must have at least %d entries", name, *v.MinItems))
		}
		if v.MaxItems != nil {
			out = append(out, fmt.Sprintf("%s: must not have more than %d items", name, *v.MaxItems))
		}
		if len(v.Enum) > 0 {
			words := make([]string, len(v.Enum))
			for i := range v.Enum {
				words[i] = fmt.Sprintf("%q", v.Enum[i].Object)
			}
			out = append(out, fmt.Sprintf("must be one of %s, not \"x\"", strings.Join(words, ", ")))
		}
	}
	for field, member := range s.Properties {
		out = append(out, constraints(field, &member)...)
	}
	if s.Items != nil {
		out = append(out, constraints("item", s.Items)...)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		out = append(out, constraints("value", s.AdditionalProperties.Structural)...)
	}
	return out
}

func checkAcceptedByWorkers(t *testing.T, kind string, obj map[string]any) {
	t.Helper()
	in := desired.Inputs{Root: desired.Root}
	if kind == v1alpha1.KindOutboxRelay {
		relay, err := decode[v1alpha1.OutboxRelay](obj)
		if err != nil {
			t.Fatal(err)
		}
		relay.UID = "0"
		if _, err := desired.Relay(relay, in); err != nil {
			t.Errorf("the schema accepts what the relay refuses: %v", err)
		}
		return
	}
	consumer, err := decode[v1alpha1.InboxConsumer](obj)
	if err != nil {
		t.Fatal(err)
	}
	consumer.UID = "0"
	if _, err := desired.Consumer(consumer, in); err != nil {
		t.Errorf("the schema accepts what the consumer refuses: %v", err)
	}
}

func long(n int) string { return strings.Repeat("a", n) }

func numbered(n int, form string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strings.ReplaceAll(form, "%", strconv.Itoa(i))
	}
	return out
}
