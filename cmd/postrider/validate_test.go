package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// call runs the program in process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestValidateAcceptsTheSamples(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := call(t, "validate", "-f", "../../config/samples")
	if code != 0 || stdout != "OK: 2 resources valid\n" || stderr != "" {
		t.Errorf("validate = %d, %q, %q", code, stdout, stderr)
	}
}

func TestValidateNamesEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	file := write(t, "relay.yaml", `apiVersion: postrider.dev/v1alpha1
kind: OutboxRelay
metadata: {name: orders}
spec:
  source:
    postgres: {hosts: [db], database: orders, credentialsSecretRef: {name: orders-db}}
  outbox: {schemaPolicy: Verify}
  destination:
    nats: {servers: [nats], stream: ORDERS, subject: "orders.>"}
  batch:
    maxMessages: 20000
`)
	code, stdout, stderr := call(t, "validate", "-f", file)
	if code != exitWrong || stdout != "" {
		t.Errorf("validate = %d, %q", code, stdout)
	}
	for _, want := range []string{
		file + ":6: spec.source.postgres.credentialsSecretRef: Secret default/orders-db is not among the files: " +
			"add it with the keys username and password\n",
		file + ":9: spec.destination.nats.subject: must be one subject",
		file + ":11: spec.batch.maxMessages: must be at most 10000\n",
		"NOT OK: 3 problems\n",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
}

func TestValidateCanLeaveSecretsToTheCluster(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := call(t, "validate", "--skip-references", "-f", "../../config/samples/orders-relay.yaml")
	if code != 0 || stdout != "OK: 1 resource valid\n" {
		t.Errorf("validate = %d, %q, %q", code, stdout, stderr)
	}
}

func TestValidateSaysWhatItIgnores(t *testing.T) {
	t.Parallel()
	file := write(t, "web.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n")
	code, _, stderr := call(t, "validate", "-f", "../../config/samples", "-f", file)
	want := file + ":1: apps/v1 Deployment web is ignored: it is no kind of Postrider's\n"
	if code != 0 || stderr != want {
		t.Errorf("validate = %d, %q, want %q", code, stderr, want)
	}
	code, _, stderr = call(t, "validate", "-f", file)
	if code != exitWrong || !strings.Contains(stderr, "no OutboxRelay and no InboxConsumer in") {
		t.Errorf("validate of nothing = %d, %q", code, stderr)
	}
}

func TestAForgottenFIsNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":  {nil, "postrider: no resources: name their folder, as in postrider validate -f config/samples\n"},
		"a folder": {[]string{"x"}, "postrider: unexpected argument \"x\": a folder with resources comes after -f\n"},
		"both":     {[]string{"x", "-f", "y"}, "postrider: unexpected argument \"x\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := call(t, append([]string{"validate"}, tc.args...)...)
			if code != exitWrong || stdout != "" || stderr != tc.want {
				t.Errorf("validate = %d, %q, %q, want %d and %q", code, stdout, stderr, exitWrong, tc.want)
			}
		})
	}
}

func TestVersionIsPrinted(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := call(t, "--version")
	if code != 0 || !strings.HasPrefix(stdout, "postrider ") || !strings.Contains(stdout, "go1.") || stderr != "" {
		t.Errorf("--version = %d, %q, %q, want the version and Go's", code, stdout, stderr)
	}
}

func TestWrongUsageExitsWithTwo(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"an unknown command":       {"valdate"},
		"an unknown flag":          {"validate", "--file", "x"},
		"a missing flag":           {"validate"},
		"an argument too many":     {"validate", "x", "-f", "y"},
		"a file that is not there": {"validate", "-f", "no/such/file.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := call(t, args...)
			if code != exitWrong || stderr == "" {
				t.Errorf("%v = %d, %q, want %d and a word of why", args, code, stderr, exitWrong)
			}
		})
	}
}
