package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/test/rules"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata, or writes it.
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
		t.Errorf("%s differs; if that is meant, run go test with -update (-want +got):\n%s", file, diff)
	}
}

// What the API server stores of the least resource of each kind: a change of a default is a change of the API.
func TestDefaultsOfTheStoredObject(t *testing.T) {
	t.Parallel()
	all := schemas(t)
	for kind, file := range map[string]string{
		"OutboxRelay": "relay.defaults.yaml", "InboxConsumer": "consumer.defaults.yaml",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, _ := all.Kind(kind)
			obj := rules.Least(t, "testdata", kind)
			if got := outcome(t, s, nil, obj); len(got) > 0 {
				t.Fatalf("the least resource is refused: %v", got)
			}
			stored, err := yaml.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, file, string(stored))
		})
	}
}

// A default that is written out must not be another object than a default that is left out.
func TestDefaultingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	all := schemas(t)
	for _, kind := range all.Kinds() {
		s, _ := all.Kind(kind)
		once := rules.Least(t, "testdata", kind)
		s.Default(once)
		twice, _ := rules.Plain(t, once).(map[string]any)
		s.Default(twice)
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Errorf("%s (-once +twice):\n%s", kind, diff)
		}
	}
}
