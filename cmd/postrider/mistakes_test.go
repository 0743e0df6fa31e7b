package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sampleFiles copies the samples into a folder, each text replaced in the file that has it.
func sampleFiles(t *testing.T, replace ...string) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	done := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for i := 0; i < len(replace); i += 2 {
			if strings.Contains(text, replace[i]) {
				text = strings.Replace(text, replace[i], replace[i+1], 1)
				done++
			}
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if done != len(replace)/2 {
		t.Fatalf("%d of %d texts were found in the samples", done, len(replace)/2)
	}
	return dir
}

func TestMistakesInResourcesAreNamedWithFileLineAndField(t *testing.T) {
	t.Parallel()
	const (
		relay    = "orders-relay.yaml"
		consumer = "billing-consumer.yaml"
	)
	cases := map[string]struct {
		replace []string
		want    []string
	}{
		"a Secret that is not there": {
			[]string{"{name: orders-db}", "{name: order-db}"},
			[]string{
				relay + ":15: spec.source.postgres.credentialsSecretRef: Secret shop/order-db is not among the files",
			},
		},
		"a Secret without its password": {
			[]string{", password: sample-orders-relay", ""},
			[]string{relay + ":15: spec.source.postgres.credentialsSecretRef: Secret shop/orders-db ("},
		},
		"malformed YAML": {
			[]string{"  destination:\n", "  destination: [\n"},
			[]string{relay + ":21: not valid YAML"},
		},
		"an unknown field": {
			[]string{
				"    schemaPolicy: Managed\n    migrationCredentialsSecretRef: {name: orders-db-owner}",
				"    schemaPolicie: Managed\n    migrationCredentialsSecretRef: {name: orders-db-owner}",
			},
			[]string{relay + ":17: spec.outbox.schemaPolicie: is not a known field; did you mean schemaPolicy?"},
		},
		"a wrong type": {
			[]string{"      database: billing", "      database: [billing]"},
			[]string{consumer + ":19: spec.inbox.postgres.database: must be of type string, not array"},
		},
		"several at once, in several files": {
			[]string{
				"      stream: ORDERS\n      subject", "      subject",
				"mode: PerKey\n    versions", "mode: PerKee\n    versions",
				"password: sample-nats-orders", "passwd: x",
			},
			[]string{
				relay + ":20: spec.destination.nats.stream: must be set",
				consumer + ":43: spec.ordering.mode: must be one of",
				relay + ":24: spec.destination.nats.credentialsSecretRef: Secret shop/nats-orders (",
			},
		},
	}
	for name, tc := range cases {
		for _, command := range []string{"validate", "up"} {
			t.Run(command+" finds "+name, func(t *testing.T) {
				t.Parallel()
				dir := sampleFiles(t, tc.replace...)
				code, out, errs := call(t, command, "-f", dir)
				if code != exitWrong || out != "" {
					t.Errorf("exit code %d, want %d, with nothing on standard output: %q", code, exitWrong, out)
				}
				for _, want := range tc.want {
					if !strings.Contains(errs, filepath.Join(dir, want)) {
						t.Errorf("no %q", want)
					}
				}
				if n := strings.Count(errs, "\n"); n != len(tc.want)+1 {
					t.Errorf("%d lines for %d mistakes and the sum", n, len(tc.want))
				}
				if strings.Contains(errs, "sample-") {
					t.Error("a secret was printed")
				}
				if t.Failed() {
					t.Logf("it wrote:\n%s", errs)
				}
			})
		}
	}
}
