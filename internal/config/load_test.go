package config_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/config"
)

func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAGoodFileRoundTrips(t *testing.T) {
	t.Parallel()

	t.Run("a relay's", func(t *testing.T) {
		t.Parallel()
		got, err := config.LoadRelay(filepath.Join("testdata", "relay.json"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Lease.D() != 30*time.Second || got.NATS.Subject != "orders.events" {
			t.Errorf("lease = %v, subject = %q", got.Lease.D(), got.NATS.Subject)
		}
		again, err := config.ParseRelay(marshal(t, got))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a consumer's", func(t *testing.T) {
		t.Parallel()
		got, err := config.LoadConsumer(filepath.Join("testdata", "consumer.json"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := config.ParseConsumer(marshal(t, got))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Error(diff)
		}
	})
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A manager that is one release ahead writes what this worker does not know: it does the rest.
func TestAFileOfTheNextVersionIsReadWithoutItsNews(t *testing.T) {
	t.Parallel()
	file := read(t, "relay.json")
	want, err := config.ParseRelay([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	next := strings.Replace(file, `"version": 1,`, `"version": 2, "pace": {"perSecond": 7},`, 1)
	next = strings.Replace(next, `"hosts"`, `"proxies": ["p"], "hosts"`, 1)
	got, err := config.ParseRelay([]byte(next))
	if err != nil {
		t.Fatal(err)
	}
	want.Version = 2
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("relay (-want +got):\n%s", diff)
	}
	wrong := strings.Replace(next, `"Run"`, `"Sprint"`, 1)
	if _, err := config.ParseRelay([]byte(wrong)); err == nil || !strings.Contains(err.Error(), "runPolicy: must be") {
		t.Errorf("a word that this version does not know: %v, want it refused", err)
	}
}

func TestAFileIsRefusedWithItsFieldNamed(t *testing.T) {
	t.Parallel()
	relay, consumer := read(t, "relay.json"), read(t, "consumer.json")

	cases := map[string]struct {
		file     string
		old, new string
		want     string
	}{
		"an unknown field": {
			relay, `"pollInterval"`, `"pollIntervall"`, "batch.pollIntervall: is not a field of this version",
		},
		"a field in another case": {
			relay, `"runPolicy"`, `"RunPolicy"`, "RunPolicy: is not a field of this version",
		},
		"a field given twice": {
			relay, `"runPolicy": "Run"`, `"runPolicy": "Pause", "runPolicy": "Run"`, "runPolicy: is given twice",
		},
		"an unknown field in a list": {
			consumer, `"eventTypes"`, `"eventTypez"`, "sql.routes[0].eventTypez: is not a field of this version",
		},
		"a text where a number belongs": {
			relay, `5432`, `"5432"`, "source.port: must be a number, not a string",
		},
		"a fraction where a whole number belongs": {
			relay, `5432`, `54.5`, "source.port: 54.5 is not a whole number in range",
		},
		"a number too large for its field": {
			relay, `5432`, `99999999999`, "source.port: 99999999999 is not a whole number in range",
		},
		"a number where a text belongs": {
			relay, `"shop"`, `7`, "resource.namespace: must be a string, not a number",
		},
		"a number where a duration belongs": {
			relay, `"30s"`, `30`, `leaseDuration: a duration is text such as "30s"`,
		},
		"a duration nobody can read": {
			relay, `"30s"`, `"30 s"`, `leaseDuration: a duration is text`,
		},
		"a list where an object belongs": {
			relay, `"batch": {`, `"batch": [{}], "x": {`, "batch: must be an object",
		},
		"an object where a list belongs": {
			relay, `["orders-db"]`, `{"a": 1}`, "source.hosts: must be a list",
		},
		"null where a value belongs": {relay, `"Run"`, `null`, "runPolicy: is null"},
		"text behind the object": {
			relay, "\n}\n", "\n}\n{}", "it is not one JSON object",
		},
		"a missing brace": {relay, "\n}\n", "\n", "it is not one JSON object"},
		"a version from far ahead": {
			relay,
			`"version": 1`,
			`"version": 3`,
			"version: this program reads version 1 and its neighbours, the file has 3",
		},
		"no version": {
			relay,
			`"version": 1`,
			`"version": 0`,
			"version: this program reads version 1 and its neighbours, the file has 0",
		},
		"a field that the next version has, in this one": {
			relay, `"version": 1`, `"version": 1, "pace": 7`, "pace: is not a field of this version",
		},
		"a namespace that is none": {
			relay, `"shop"`, `"Shop/x"`, "resource.namespace: must be a namespace name",
		},
		"no name": {
			relay, `"name": "orders"`, `"name": ""`, "resource.name: must be set",
		},
		"an unknown run policy": {
			relay, `"Run"`, `"Stop"`, "runPolicy: must be Run or Pause or Drain",
		},
		"no host": {
			relay, `["orders-db"]`, `[]`, "source.hosts: must have 1 to 5 entries, not 0",
		},
		"a host with a scheme": {
			relay, `"orders-db"`, `"postgres://orders-db"`, "source.hosts[0]: must be a host name",
		},
		"a host with a port": {
			relay, `"orders-db"`, `"orders-db:5432"`, "source.hosts[0]: must be a host name",
		},
		"a host with a smuggled setting": {
			relay, `"orders-db"`, `"a passfile=/x"`, "source.hosts[0]: must be a host name",
		},
		"a schema that is no identifier": {
			relay, `"public"`, `"a; drop table x"`, "source.schema: must be one identifier",
		},
		"a table with quotes": {
			relay, `"message_outbox"`, `"a\"b"`, "outbox.table: must be one identifier",
		},
		"a table too long for its suffixes": {
			relay, `"message_outbox"`, `"` + strings.Repeat("a", 41) + `"`, "outbox.table: is longer than 40 bytes",
		},
		"a relative path of secrets": {
			relay, `"/secrets/db"`, `"secrets/db"`, "source.credentialsDir: must be an absolute path",
		},
		"a path of secrets that climbs": {
			relay, `"/secrets/db"`, `"/secrets/../db"`, "source.credentialsDir: must be an absolute path",
		},
		"a certificate that is never used": {
			relay, `"mode": "VerifyFull"`, `"mode": "Insecure"`, "source.tls: mode Insecure uses no certificate",
		},
		"no broker": {
			relay, `"nats": {`, `"nats": null, "batchX": {`, "batchX: is not a field",
		},
		"a server with credentials": {
			relay, `nats://nats:4222`, `nats://u:p@nats:4222`, "nats.servers[0]: must be nats://host:port",
		},
		"a server with two schemes": {
			relay, `nats://nats:4222`, `nats://tls://nats:4222`, "nats.servers[0]: must be nats://host:port",
		},
		"a server with port 0": {
			relay, `nats://nats:4222`, `nats://nats:0`, "nats.servers[0]: must be nats://host:port",
		},
		"a stream with a dot": {
			relay, `"ORDERS"`, `"ORDERS.X"`, "nats.stream: must be letters",
		},
		"a wildcard as default destination": {
			relay, `"orders.events"`, `"orders.*"`, "nats.subject: must be one subject",
		},
		"the API of NATS as destination": {
			relay, `"orders.events"`, `"$JS.API.STREAM.DELETE.X"`, "nats.subject: must be one subject",
		},
		"the API of NATS as allowed": {
			relay, `"orders.>"`, `"$JS.>"`, "allowed[0]: must be a subject",
		},
		"no room between publish and lease": {
			relay, `"30s"`, `"15s"`, "leaseDuration: must be above batch.publishTimeout plus 5s, that is above 15s",
		},
		"a relay with a durable": {
			relay, `"subject"`, `"durable": "x", "subject"`, "nats.durable: is a consumer's",
		},
		"a batch of nothing": {
			relay, `500`, `0`, "batch.maxMessages: must be 1 to 10000, not 0",
		},
		"a poll that never rests": {
			relay, `"200ms"`, `"1ms"`, "batch.pollInterval: must be 10ms to 1m0s, not 1ms",
		},
		"a pause that shrinks": {
			relay, `"2m0s"`, `"1ms"`, "backoff.max: must not be below backoff.initial",
		},
		"more shards than there can be": {
			relay, `"shards": 8`, `"shards": 65`, "outbox.shards: must be 1 to 64, not 65",
		},
		"no consumer name": {
			consumer, `"shop/billing"`, `""`, "consumerName: must be set",
		},
		"a replay further than the memory": {
			consumer, `"336h0m0s"`, `"2000h"`, "inbox.replayHorizon: must not be above inbox.retention",
		},
		"no handler": {
			consumer, `"sql": {`, `"sqlX": {`, "sqlX: is not a field",
		},
		"a route without types": {
			consumer, `["order.paid", "order.refunded"]`, `[]`, "sql.routes[0].eventTypes: must have 1 to 64 entries",
		},
		"a type routed twice": {
			consumer, `"order.refunded"`, `"order.paid"`,
			"sql.routes[0].eventTypes[1]: is already routed by sql.routes[0]",
		},
		"a type with a star in the middle": {
			consumer,
			`"order.refunded"`,
			`"order.*.x"`,
			"sql.routes[0].eventTypes[1]: must be an event type, or prefix.*",
		},
		"a route without statement": {
			consumer, `"statement": "INSERT`, `"statement": " ", "x": "INSERT`, "sql.routes[0].x: is not a field",
		},
		"order that NATS cannot keep": {
			consumer, `"Enforce"`, `"Unchecked"`, "ordering: with NATS, mode PerKey needs versions Enforce",
		},
		"a consumer with a subject": {
			consumer, `"durable"`, `"subject": "x", "durable"`, "nats.subject: is a relay's",
		},
		"a message of no size": {
			consumer, `1048576`, `0`, "validation.maxBytes: must be 1 to 67108864, not 0",
		},
		"a handler without time": {
			consumer, `"handlerTimeout": "30s"`, `"handlerTimeout": "0s"`, "concurrency.handlerTimeout: must be 10ms",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(tc.file, tc.old, tc.new, 1)
			if changed == tc.file {
				t.Fatalf("the file holds no %q", tc.old)
			}
			path := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if tc.file == relay {
				_, err = config.LoadRelay(path)
			} else {
				_, err = config.LoadConsumer(path)
			}
			if _, ok := errors.AsType[*config.InvalidError](err); !ok {
				t.Fatalf("error = %v, want an InvalidError", err)
			}
			if !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %q, want the file and %q", err, tc.want)
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error has more than one line: %q", err)
			}
		})
	}
}

func TestEveryProblemIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.ParseRelay([]byte(`{"version": 1}`))
	for _, field := range []string{"resource.namespace", "runPolicy", "source.hosts", "nats", "leaseDuration"} {
		if err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("error = %v, want %s in it", err, field)
		}
	}
}

func TestAProblemNeverRepeatsWhatWasPasted(t *testing.T) {
	t.Parallel()
	file := strings.Replace(read(t, "relay.json"), "nats://nats:4222", "nats://me:canary-1@nats:4222", 1)
	file = strings.Replace(file, `"orders-db"`, `"postgres://me:canary-2@db"`, 1)
	_, err := config.ParseRelay([]byte(file))
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("error = %v, want one without the canary", err)
	}
}

func TestAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()

	t.Run("a missing one is named once", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(dir, "missing.json")
		_, err := config.LoadRelay(path)
		if err == nil || err.Error() != path+": cannot read it: no such file or directory" {
			t.Errorf("error = %v", err)
		}
	})
	t.Run("one that is too large is not read to its end", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(dir, "large.json")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(1<<40), f.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = config.LoadConsumer(path)
		if err == nil || !strings.Contains(err.Error(), "it is larger than 1048576 bytes") {
			t.Errorf("error = %v", err)
		}
	})
}

func FuzzParseRelay(f *testing.F) {
	f.Add([]byte(read(f, "relay.json")))
	f.Add([]byte(`{"source":{"hosts":[null,{}]},"nats":null}`))
	f.Add([]byte(`{"a":[[[[{"b":`))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := config.ParseRelay(b)
		if err != nil {
			refusedInOneLine(t, err)
			return
		}
		second, err := config.ParseRelay(marshal(t, first))
		if err != nil {
			t.Fatalf("a config that was accepted is refused when written again: %v", err)
		}
		if diff := cmp.Diff(marshal(t, first), marshal(t, second)); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzParseConsumer(f *testing.F) {
	f.Add([]byte(read(f, "consumer.json")))
	f.Add([]byte(`{"sql":{"routes":[{"eventTypes":["a","a"]}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := config.ParseConsumer(b)
		if err != nil {
			refusedInOneLine(t, err)
			return
		}
		second, err := config.ParseConsumer(marshal(t, first))
		if err != nil {
			t.Fatalf("a config that was accepted is refused when written again: %v", err)
		}
		if diff := cmp.Diff(marshal(t, first), marshal(t, second)); diff != "" {
			t.Error(diff)
		}
	})
}

func refusedInOneLine(t *testing.T, err error) {
	t.Helper()
	var invalid *config.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
		t.Fatalf("error = %v, want an InvalidError with problems", err)
	}
	if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 16<<10 {
		t.Errorf("error is not one short line: %q", err)
	}
}

func TestSecretPathsAreAllThatTheFileNames(t *testing.T) {
	t.Parallel()
	relay, err := config.ParseRelay([]byte(read(t, "relay.json")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(
		[]string{"/secrets/db", "/secrets/db-ca/ca.crt", "/secrets/nats"},
		relay.SecretPaths(),
	); diff != "" {
		t.Error(diff)
	}
	consumer, err := config.ParseConsumer([]byte(read(t, "consumer.json")))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/secrets/db", "/secrets/nats", "/secrets/nats-ca/ca.crt", "/secrets/nats-client"}
	if diff := cmp.Diff(want, consumer.SecretPaths()); diff != "" {
		t.Error(diff)
	}
}
