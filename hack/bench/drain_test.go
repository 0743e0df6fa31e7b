package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/bench"
)

// Every destination takes everything, from its own client and from the relay. How fast says nothing in a test.
func TestEachBrokerIsMeasured(t *testing.T) {
	t.Parallel()
	for _, to := range targets() {
		t.Run(to.name, func(t *testing.T) {
			t.Parallel()
			report, err := measure(t.Context(), to, bench.DrainConfig{
				Rows: 600, Keys: 40, PayloadBytes: 300, Batch: 100, Runs: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			if err := writeJSON(folder, "drain-"+to.name, report); err != nil {
				t.Error(err)
			}
			if raw, err := os.ReadFile(filepath.Join(folder, "drain-"+to.name+".json")); err != nil || len(raw) == 0 {
				t.Errorf("the results: %d bytes, %v", len(raw), err)
			}
			names := []string{bench.Bare, bench.Floor, bench.Relay}
			if to.open != nil {
				names = append(names, bench.Producer)
			}
			for _, name := range names {
				if result, ok := report.Result(name); !ok || len(result.Runs) != 1 || result.Median <= 0 {
					t.Errorf("%s: %+v", name, result)
				}
			}
		})
	}
}

func TestAnUnknownBrokerIsNamed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-to", "null,pulsar"}, &out)
	if err == nil || !strings.Contains(err.Error(), "pulsar is none of null, nats, kafka, rabbitmq") {
		t.Errorf("run() = %v\n%s", err, &out)
	}
}
