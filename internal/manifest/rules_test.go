package manifest

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// checkRules runs the cases, and demands that what is accepted makes a configuration that workers accept.
func checkRules(t *testing.T, cases map[string]rule) {
	t.Helper()
	all := schemas(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.kind == "" {
				tc.kind = v1alpha1.KindOutboxRelay
			}
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
