package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// relayFile writes the config of a relay on a database.
func relayFile(t *testing.T, db *testkit.DB) string {
	t.Helper()
	second := config.Duration(time.Second)
	raw, err := json.Marshal(config.Relay{
		Version:   config.Version,
		RunPolicy: config.RunPolicyRun,
		Source:    db.Config(),
		Ordering:  config.OrderingPerKey,
		Resource:  config.Resource{Namespace: "shop", Name: "orders", UID: "uid-1", Generation: 1},
		Outbox:    config.Outbox{Table: "events", Shards: 4, PublishedRetention: config.Duration(time.Hour)},
		NATS: &config.NATS{
			Servers: []string{"nats:4222"}, Stream: "ORDERS", Topology: config.TopologyVerify, Subject: "orders",
			TLS: config.TLS{Mode: config.TLSInsecure},
		},
		Lease:        30 * second,
		StatusTick:   second,
		Backoff:      config.Backoff{Initial: second, Max: second},
		OnDeadLetter: config.BlockKey,
		Budget:       config.Budget{MaxAttempts: 1, MaxElapsed: second, MinRetriesPerSecond: 1},
		Batch:        config.Batch{MaxMessages: 1, MaxBytes: 1024, PollInterval: second, PublishTimeout: second},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSchemaApplyAsTheStepBeforeAWorker(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	file := relayFile(t, db.Ordinary())

	code, stdout, stderr := call(t, "schema", "apply", "outbox", "--config", file, "--listen", "127.0.0.1:0",
		"--allow-loopback", "--credentials-dir", db.Config().CredentialsDir)

	if code != 0 || stdout != "" || !strings.Contains(stderr, `"msg":"The tables are ready"`) {
		t.Fatalf("apply = %d, %q, %q", code, stdout, stderr)
	}
	if n := testkit.Value[int](db, "SELECT shards FROM "+db.Schema+".events_owner"); n != 4 {
		t.Errorf("the tables have %d shards, want 4 as the config says", n)
	}
}

func TestSchemaApplyTakesNothingTwice(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]string{
		"--host is in the file":      {"outbox", "--host", "x"},
		"--shards is in the file":    {"outbox", "--shards", "3"},
		"name outbox or inbox":       {"outbox", "inbox"},
		"a log level is debug, info": {"outbox", "--log-level", "loud"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := call(t, append([]string{"schema", "apply", "--config", "none.json"}, words...)...)
			if code != exitWrong || !strings.Contains(stderr, name) {
				t.Errorf("apply = %d, %q, want %q", code, stderr, name)
			}
		})
	}
}
