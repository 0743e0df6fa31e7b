package manifest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/test/rules"
)

// loadOnce compiles the rules once for all tests.
var loadOnce = sync.OnceValues(LoadSchemas)

func schemas(t *testing.T) *Schemas {
	t.Helper()
	s, err := loadOnce()
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

// Each case is checked by the API server's own code; what it accepts must make a configuration that workers accept.
func TestRules(t *testing.T) {
	t.Parallel()
	all := schemas(t)
	for name, tc := range rules.Load(t, "testdata") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ok := all.Kind(tc.Kind)
			if !ok {
				t.Fatalf("no schema of %s", tc.Kind)
			}

			got := outcome(t, s, tc.Old, tc.Object)

			slices.Sort(tc.Refuse)
			if diff := cmp.Diff(tc.Refuse, got); diff != "" {
				t.Fatalf("refused (-want +got):\n%s", diff)
			}
			if len(got) == 0 {
				checkAcceptedByWorkers(t, tc.Kind, tc.Object)
			}
		})
	}
}

// A rule without a case that it refuses could be removed, and no test would fail.
func TestEveryRuleOfTheSchemasHasARefusingCase(t *testing.T) {
	t.Parallel()
	var refused []string
	for _, tc := range rules.Load(t, "testdata") {
		refused = append(refused, tc.Refuse...)
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
	out = append(out, valueConstraints(name, s.ValueValidation)...)
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

func valueConstraints(name string, v *structural.ValueValidation) []string {
	if v == nil {
		return nil
	}
	var out []string
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
	return out
}
