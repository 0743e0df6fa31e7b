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

func TestARelayIsHeldToItsBarOrToWhatTheMachineCanDo(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		relay, together float64 // of a limit of 1000
		alone           bool    // no broker
		want            verdict
		says            string
	}{
		"it reaches the bar": {relay: 700, together: 900, want: met},
		"it does not, and it could": {
			relay:    690,
			together: 900,
			want:     missed,
			says:     "69 % of the limit",
		},
		"nobody could here, and it is as good as the rest": {
			relay:    500,
			together: 550,
			want:     notShown,
			says:     "91 % of that",
		},
		"nobody could here, and it is worse than the rest": {
			relay:    300,
			together: 600,
			want:     missed,
			says:     "50 % of that",
		},
		"there is no broker to share the machine with": {relay: 690, alone: true, want: missed, says: "69 %"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := bench.Report{
				Results: []bench.Result{{Name: bench.Relay, Median: tc.relay, OfLimit: tc.relay / 1000}},
			}
			if !tc.alone {
				report.Results = append(report.Results,
					bench.Result{Name: bench.Together, Median: tc.together, OfLimit: tc.together / 1000})
			}
			got, text := judge(target{name: "kafka", bar: brokerBar}, report)
			if got != tc.want || !strings.Contains(text, tc.says) {
				t.Errorf("judge() = %d, %q, want %d and %q", got, text, tc.want, tc.says)
			}
		})
	}
}
