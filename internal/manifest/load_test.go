package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/desired"
)

// canary is a secret value that must never be seen.
const canary = "hunter2"

// load reads one file of the given content and returns the set, or the problems without the file's folder.
func load(t *testing.T, content string) (*Set, []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "f.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := Load(t.Context(), schemas(t), Options{}, file)
	if err == nil {
		return set, nil
	}
	problems, ok := errors.AsType[Problems](err)
	if !ok {
		t.Fatalf("Load() error = %v, of type %T", err, err)
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = strings.TrimPrefix(p.String(), dir+string(filepath.Separator))
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("a secret value shows in %v", lines)
	}
	return set, lines
}

// Every file of testdata/broken is wrong in many ways; broken.txt says what is reported.
func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load(t.Context(), schemas(t), Options{}, "testdata/broken")
	if err == nil {
		t.Fatal("the broken files are accepted")
	}
	if strings.Contains(err.Error(), canary) {
		t.Error("a secret value shows")
	}
	golden(t, "broken.txt", err.Error()+"\n")
}

func TestMistakesInYAML(t *testing.T) {
	t.Parallel()
	const notValid = "not valid YAML: "
	cases := map[string]struct {
		content string
		want    []string
	}{
		"a mapping in a value, on the first line": {
			"a: b: c\n", []string{"f.yaml:1: " + notValid + "mapping values are not allowed in this context"},
		},
		"a tab as indentation": {
			"a:\n\tb: 1\n", []string{"f.yaml:2: " + notValid + "found character that cannot start any token"},
		},
		"a list that is not closed": {
			"a: 1\nb: [1\nc: 2\n", []string{"f.yaml:3: " + notValid + "did not find expected ',' or ']'"},
		},
		"an indentation that fits nothing": {
			"a:\n  b: 1\n c: 2\n", []string{"f.yaml:3: " + notValid + "did not find expected key"},
		},
		"a line without a colon": {
			"a: 1\nb\nc: 2\n", []string{"f.yaml:3: " + notValid + "could not find expected ':'"},
		},
		"keys that are there twice": {
			"a: 1\nb: 2\na: 3\nb: 4\n", []string{
				`f.yaml:3: the key "a" is there twice`, `f.yaml:4: the key "b" is there twice`,
			},
		},
		"a value that begins with a star": {
			"a: 1\n---\nb: 1\npassword: *" + canary + "\n", []string{
				"f.yaml:1: must have apiVersion and kind, both text",
				"f.yaml:4: " + notValid + "*name refers to an anchor that is not there; " +
					"put a text that begins with * in quotes",
			},
		},
		"a key that is a list with a secret in it": {"? [" + canary + "]\n: b\n", []string{"f.yaml:1: not valid YAML"}},
		"a list instead of a mapping": {
			"\n- a\n",
			[]string{"f.yaml:2: must be a mapping with apiVersion and kind"},
		},
		"a text instead of a mapping": {
			canary,
			[]string{"f.yaml:1: must be a mapping with apiVersion and kind"},
		},
		"a mistake hides nothing behind it": {
			"a: [\n---\nkind: Secret\n---\nb: {\n", []string{
				"f.yaml:2: " + notValid + "did not find expected node content",
				"f.yaml:3: must have apiVersion and kind, both text",
				"f.yaml:6: " + notValid + "did not find expected node content",
			},
		},
		"a document on its separator's line": {
			"--- {a: 1}\n--- # none\n...\nb: 1\n", []string{
				"f.yaml:1: must have apiVersion and kind, both text",
				"f.yaml:4: must have apiVersion and kind, both text",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, got := load(t, tc.content); !slices.Equal(got, tc.want) {
				t.Errorf("problems (-want +got):\n%s", cmp.Diff(tc.want, got))
			}
		})
	}
}

func TestMistakesInObjects(t *testing.T) {
	t.Parallel()
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	cases := map[string]struct {
		content string
		want    []string
	}{
		"a kind that we do not have": {
			"apiVersion: postrider.dev/v1alpha1\nkind: OutboxRelais\n",
			[]string{"f.yaml:2: kind: is no kind of postrider.dev: choose InboxConsumer or OutboxRelay"},
		},
		"a version that we do not have": {
			"apiVersion: postrider.dev/v1\nkind: OutboxRelay\n",
			[]string{"f.yaml:1: apiVersion: must be postrider.dev/v1alpha1"},
		},
		"an object without a name": {
			"apiVersion: v1\nkind: Secret\nmetadata: {namespace: shop}\n",
			[]string{"f.yaml:3: metadata.name: must be a name: lower case letters, digits, - and ., " +
				"beginning and ending with a letter or digit"},
		},
		"an object without metadata": {
			"apiVersion: v1\nkind: ConfigMap\n", []string{"f.yaml:1: metadata: must be a mapping with a name"},
		},
		"a namespace that is none": {
			"apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: A_b\n",
			[]string{"f.yaml:5: metadata.namespace: must be a namespace: lower case letters, digits and -, at most 63"},
		},
		"a namespace that YAML takes for a truth value": {
			"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: no}\n",
			[]string{"f.yaml:3: metadata.namespace: must be text: put the value in quotes"},
		},
		"labels and annotations that are no texts": {
			"apiVersion: postrider.dev/v1alpha1\nkind: OutboxRelay\nmetadata:\n  name: r\n  labels:\n    example.com/a: yes\n" +
				"  annotations: {count: 1}\nspec: {}\n",
			[]string{
				"f.yaml:6: metadata.labels[example.com/a]: must be text: put the value in quotes",
				"f.yaml:7: metadata.annotations[count]: must be text: put the value in quotes",
				"f.yaml:8: spec.destination: must be set",
				"f.yaml:8: spec.outbox.migrationCredentialsSecretRef: schemaPolicy Managed needs " +
					"migrationCredentialsSecretRef, the owner of the tables; or choose Verify and run postrider schema apply " +
					"yourself",
				"f.yaml:8: spec.source: must be set",
			},
		},
		"two objects of one name": {
			secret + "---\n" + secret,
			[]string{"f.yaml:7: metadata.name: Secret default/s is already defined at f.yaml:1"},
		},
		"the same name elsewhere is another object": {
			secret + "---\n" + strings.Replace(secret, "name: s", "name: s, namespace: bank", 1) + "---\n" +
				strings.Replace(secret, "Secret", "ConfigMap", 1), nil,
		},
		"a secret that is not base64": {
			secret + "data: {password: " + canary + "}\n",
			[]string{"f.yaml:4: data.password: is not base64: encode it, or write it as it is under stringData"},
		},
		"secrets that are no texts": {
			secret + "stringData:\n  a: 12\n  b: true\n  c: [" + canary + "]\n", []string{
				"f.yaml:5: stringData.a: must be text: put the value in quotes",
				"f.yaml:6: stringData.b: must be text: put the value in quotes",
				"f.yaml:7: stringData.c: must be text: put the value in quotes",
			},
		},
		"secrets that are no mapping": {
			secret + "stringData: " + canary + "\n",
			[]string{"f.yaml:4: stringData: must be a mapping of keys to texts"},
		},
		"a key that is none": {
			secret + "stringData: {a b: x}\n",
			[]string{"f.yaml:4: stringData.a b: is not a key: use letters, digits, - _ and ."},
		},
		"a field that a Secret does not have": {
			secret + "stringdata: {password: " + canary + "}\n",
			[]string{"f.yaml:4: stringdata: is not a known field; did you mean stringData?"},
		},
		"a key twice in a ConfigMap": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\nbinaryData: {a: Yg==}\n",
			[]string{"f.yaml:5: binaryData.a: is in data too: keep one of the two"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := load(t, tc.content)
			for i := range got { // the folder of the first definition
				if at := strings.Index(got[i], "defined at "); at >= 0 {
					got[i] = got[i][:at] + "defined at " + filepath.Base(got[i])
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("problems (-want +got):\n%s", cmp.Diff(tc.want, got))
			}
		})
	}
}

func relayWith(t *testing.T, secrets string) string {
	t.Helper()
	relay, err := os.ReadFile("testdata/relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(relay) + secrets
}

const dbSecret = `
---
apiVersion: v1
kind: Secret
metadata: {name: orders-db, namespace: shop}
data: {username: dXNlcg==, password: b2xk}
stringData: {password: ` + canary + `, extra: x}
`

const ownerSecret = `
---
apiVersion: v1
kind: Secret
metadata: {name: orders-db-owner, namespace: shop}
stringData: {username: owner, password: "*"}
`

func TestReferences(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		content string
		want    []string
	}{
		"all that is named is there": {dbSecret + ownerSecret, nil},
		"a Secret that is not there": {
			dbSecret, []string{"f.yaml:14: spec.outbox.migrationCredentialsSecretRef: " +
				"Secret shop/orders-db-owner is not among the files: add it with the keys username and password"},
		},
		"a Secret of another namespace is another Secret": {
			dbSecret + strings.Replace(ownerSecret, "namespace: shop", "namespace: bank", 1),
			[]string{"f.yaml:14: spec.outbox.migrationCredentialsSecretRef: " +
				"Secret shop/orders-db-owner is not among the files: add it with the keys username and password"},
		},
		"a Secret without a key": {
			dbSecret + strings.Replace(ownerSecret, "username: owner, ", "", 1),
			[]string{"f.yaml:14: spec.outbox.migrationCredentialsSecretRef: " +
				"Secret shop/orders-db-owner (f.yaml:29) has no key username"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := load(t, relayWith(t, tc.content))
			for i := range got {
				if before, after, ok := strings.Cut(got[i], "("); ok {
					got[i] = before + "(" + after[strings.LastIndexByte(after[:strings.IndexByte(after, ')')], '/')+1:]
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("problems (-want +got):\n%s", cmp.Diff(tc.want, got))
			}
		})
	}
}

func TestATableHasOneRelay(t *testing.T) {
	t.Parallel()
	relay := func(name, namespace, hosts, table string) string {
		return "---\napiVersion: postrider.dev/v1alpha1\nkind: OutboxRelay\nmetadata: {name: " + name + ", namespace: " +
			namespace + "}\nspec:\n  source: {postgres: {hosts: " + hosts + ", database: d, credentialsSecretRef: {name: s}}}\n" +
			"  outbox: {table: " + table + ", schemaPolicy: Verify}\n" +
			"  destination: {nats: {servers: [nats], stream: S, subject: a.b, credentialsSecretRef: {name: s}}}\n"
	}
	cases := map[string]struct {
		second string
		want   []string
	}{
		"another table":                         {relay("b", "east", "[db]", "u"), nil},
		"another host":                          {relay("b", "east", "[db2]", "t"), nil},
		"a Service of that name somewhere else": {relay("b", "west", "[db]", "t"), nil},
		"the same table": {
			relay("b", "east", "[db]", "t"),
			[]string{"f.yaml:15: spec.outbox.table: "},
		},
		"the same table, by one host of a cluster": {
			relay("b", "east", "[a, db]", "t"),
			[]string{"f.yaml:15: spec.outbox.table: "},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secrets := ""
			for _, namespace := range []string{"east", "west"} {
				secrets += "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: " + namespace + "}\n" +
					"stringData: {username: u, password: " + canary + "}\n"
			}
			_, got := load(t, relay("a", "east", "[db]", "t")+tc.second+secrets)
			if len(got) != len(tc.want) || (len(got) > 0 && !strings.HasPrefix(got[0], tc.want[0]+
				"t is the outbox of the relay at ")) {
				t.Errorf("problems %q, want %q", got, tc.want)
			}
		})
	}
}

func TestALoadedSetIsComplete(t *testing.T) {
	t.Parallel()
	set, problems := load(t, relayWith(t, dbSecret+ownerSecret+`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
`))
	if problems != nil {
		t.Fatal(problems)
	}
	if set.Resources() != 1 || len(set.Secrets) != 2 {
		t.Fatalf("loaded %d resources and %d Secrets, want 1 and 2", set.Resources(), len(set.Secrets))
	}
	relay := set.Relays[0]
	if relay.Spec.Outbox.Shards != 8 || relay.Generation != 1 || relay.UID == "" || relay.Origin.Line != 2 {
		t.Errorf("the relay lacks its defaults, its UID or its origin: %+v", relay)
	}
	if len(set.Ignored) != 1 || set.Ignored[0].Kind != "apps/v1 Deployment" || set.Ignored[0].Name != "web" {
		t.Errorf("ignored %v, want the Deployment", set.Ignored)
	}
	files := set.Files("shop", desired.RelayReferences(relay.OutboxRelay)[0])
	if len(files) != 2 || string(files["username"].Reveal()) != "user" || string(files["password"].Reveal()) != canary {
		t.Error("the files are not the two keys that are used, stringData before data")
	}
}

func TestTheUIDStaysFromRunToRun(t *testing.T) {
	t.Parallel()
	if a, b := localUID("K", "ns", "n"), localUID("K", "ns", "n"); a != b {
		t.Errorf("%s and then %s", a, b)
	}
	if a, b := localUID("K", "ns", "n"), localUID("K", "ns", "m"); a == b {
		t.Errorf("two resources share %s", a)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for path, want := range map[string]string{
		"no/such/dir": "no/such/dir: does not exist",
		empty:         empty + ": holds no .yaml or .yml file",
		os.DevNull:    os.DevNull + ": cannot be read: it is not a regular file",
	} {
		_, err := Load(t.Context(), schemas(t), Options{}, path)
		if err == nil || err.Error() != want {
			t.Errorf("Load(%s) error = %v, want %s", path, err, want)
		}
	}
}

func TestASecretNeverPrints(t *testing.T) {
	t.Parallel()
	secret := Secret{Name: "s", Data: map[string]Redacted{"password": {[]byte(canary)}}}
	encoded, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret, "value", secret.Data["password"])
	printed := []string{string(encoded), log.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed = append(printed, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, secret.Data["password"]),
			fmt.Sprintf(verb, &secret))
	}
	for _, p := range printed {
		// As text, as hex and as the list of its bytes.
		for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%d", []byte(canary)), "aHVudGVyMg"} {
			if strings.Contains(p, strings.Trim(form, "[]")) {
				t.Errorf("the secret shows in %s", p)
			}
		}
	}
}
