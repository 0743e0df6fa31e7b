// Package rules reads the cases of the API's rules, so that the checks without a cluster and a real API server are held
// to the same ones.
package rules

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
)

// written is one case as its file has it: what is changed in the least resource of its kind, and what is then refused.
type written struct {
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

// Case is one case of a rule.
type Case struct {
	// Kind is that of the object.
	Kind string
	// Object is what is sent, Old what is stored already; nil where the object is new.
	Object, Old map[string]any
	// Refuse is every error, as "field: text"; none where the object is accepted.
	Refuse []string
}

// Load reads the cases below a folder that has the least resources and a folder rules, by file and sentence.
func Load(t testing.TB, dir string) map[string]Case {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "rules", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	all := make(map[string]Case)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []written
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
			all[name] = tc.read(t, dir)
		}
	}
	return all
}

// read makes the objects of a case.
func (w written) read(t testing.TB, dir string) Case {
	t.Helper()
	c := Case{Kind: w.Kind, Object: Least(t, dir, w.Kind), Refuse: w.Refuse}
	for path, value := range w.Set {
		change(t, c.Object, path, expand(t, value))
	}
	if w.Update {
		c.Old = Least(t, dir, w.Kind)
	}
	return c
}

// expand writes out the long values of a case.
func expand(t testing.TB, value any) any {
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

func repeated(t testing.TB, v map[string]any, times int) any {
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

// Least reads the least resource of a kind.
func Least(t testing.TB, dir, kind string) map[string]any {
	t.Helper()
	file := "relay.yaml"
	if kind == v1alpha1.KindInboxConsumer {
		file = "consumer.yaml"
	}
	raw, err := os.ReadFile(filepath.Join(dir, file))
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
func change(t testing.TB, obj map[string]any, path string, value any) {
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
		part[last] = Plain(t, value)
	case []any:
		i, err := strconv.Atoi(last)
		if err != nil {
			t.Fatal(err)
		}
		part[i] = Plain(t, value)
	default:
		t.Fatalf("%s lies in no mapping and no list", path)
	}
}

func enter(t testing.TB, at any, step string) any {
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

// Plain turns a value into what JSON decodes to.
func Plain(t testing.TB, value any) any {
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

// steps cuts a path such as spec.routes[0].labels[example.com/team] into its names, indices and keys.
func steps(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return append(out, path[1:])
			}
			out, path = append(out, path[1:end]), path[end+1:]
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out, path = append(out, path[:end]), path[end:]
		}
	}
	return out
}
