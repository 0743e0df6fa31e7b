package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
)

// rule is one case of a rule, read from testdata/rules: what is changed in the least resource of its kind, and what is
// then refused. The same cases are meant for a real API server.
type rule struct {
	// Case is a sentence.
	Case string `json:"case"`
	// Kind is OutboxRelay where empty.
	Kind string `json:"kind"`
	// Set holds values by path; null takes a field away. {$text: a, $times: 3} stands for aaa, {$each: a%, $times: 3}
	// for a list and {$keys: a%, $times: 3} for a mapping of a0, a1 and a2.
	Set map[string]any `json:"set"`
	// Refuse is every error, as "field: text"; none where the object is accepted.
	Refuse []string `json:"refuse"`
	// Update says that the change is made to a stored object.
	Update bool `json:"update"`
}

// allRules reads the cases, by file and sentence.
func allRules(t *testing.T) map[string]rule {
	t.Helper()
	files, err := filepath.Glob("testdata/rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in testdata/rules: %v", err)
	}
	all := make(map[string]rule)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []rule
		if err := yaml.UnmarshalStrict(raw, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, tc := range cases {
			if tc.Kind == "" {
				tc.Kind = v1alpha1.KindOutboxRelay
			}
			name := strings.TrimSuffix(filepath.Base(file), ".yaml") + ": " + tc.Case
			if _, twice := all[name]; twice {
				t.Fatalf("two cases are called %q", name)
			}
			all[name] = tc
		}
	}
	return all
}

// expand writes out the long values of a case.
func expand(t *testing.T, value any) any {
	t.Helper()
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = expand(t, v[i])
		}
	case map[string]any:
		if times, ok := v["$times"].(float64); ok {
			return repeated(t, v, int(times))
		}
		for key := range v {
			v[key] = expand(t, v[key])
		}
	}
	return value
}

func repeated(t *testing.T, v map[string]any, times int) any {
	t.Helper()
	if text, ok := v["$text"].(string); ok {
		return strings.Repeat(text, times)
	}
	list, keys := make([]any, times), make(map[string]any, times)
	for i := range times {
		form := v["$each"]
		if key, ok := v["$keys"].(string); ok {
			keys[strings.ReplaceAll(key, "%", strconv.Itoa(i))] = "x"
			continue
		}
		raw, err := json.Marshal(form)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(bytes.ReplaceAll(raw, []byte("%"), []byte(strconv.Itoa(i))), &list[i]); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys) > 0 {
		return keys
	}
	return list
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
	for name, tc := range allRules(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ok := all.Kind(tc.Kind)
			if !ok {
				t.Fatalf("no schema of %s", tc.Kind)
			}
			obj := seed(t, tc.Kind)
			for path, value := range tc.Set {
				change(t, obj, path, expand(t, value))
			}
			var old map[string]any
			if tc.Update {
				old = seed(t, tc.Kind)
			}

			got := outcome(t, s, old, obj)

			slices.Sort(tc.Refuse)
			if diff := cmp.Diff(tc.Refuse, got); diff != "" {
				t.Fatalf("refused (-want +got):\n%s", diff)
			}
			if len(got) == 0 {
				checkAcceptedByWorkers(t, tc.Kind, obj)
			}
		})
	}
}

// A rule without a case that it refuses could be removed, and no test would fail.
func TestEveryRuleOfTheSchemasHasARefusingCase(t *testing.T) {
	t.Parallel()
	var refused []string
	for _, tc := range allRules(t) {
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
