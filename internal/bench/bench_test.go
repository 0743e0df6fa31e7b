package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/internal/broker/brokertest"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/test/testkit"
)

// Every contestant must really drain what it is given; Drain itself checks that nothing is missing.
func TestDrainComparesAllContestants(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t, testkit.OwnDatabase(nil)) // others' schemas are not in it
	var progress bytes.Buffer
	cfg := bench.DrainConfig{
		Postgres: db.Pool().Config(), Rows: 2500, Keys: 40, PayloadBytes: 300, Batch: 100, Runs: 2, Progress: &progress,
	}

	report, err := bench.Drain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{bench.Bare, bench.Floor, bench.Relay} {
		r, ok := report.Result(name)
		if !ok || len(r.Runs) != cfg.Runs || r.Median <= 0 || r.OfLimit <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if got := strings.Count(progress.String(), "\n"); got != 3*cfg.Runs {
		t.Errorf("%d lines of progress, want %d:\n%s", got, 3*cfg.Runs, &progress)
	}
	if report.Machine.Postgres == "" || !strings.Contains(report.Machine.Settings, "fsync on") {
		t.Errorf("the machine is not named: %+v", report.Machine)
	}
	var schemas int
	db.QueryRow(`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'postrider_bench_%'`, nil, &schemas)
	if schemas != 0 {
		t.Errorf("%d schemas are left behind", schemas)
	}
}

// The limit is the slower of the bare loop and the broker's own client.
func TestDrainToABrokerComparesItsClientToo(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	var emptied int
	slow := func(ctx context.Context, batch []message.Message) error {
		sent.Add(int64(len(batch)))
		pause := time.NewTimer(200 * time.Millisecond)
		defer pause.Stop()
		select {
		case <-pause.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	publisher := brokertest.NewFake(brokertest.FakeConfig{})
	cfg := bench.DrainConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rows: 300, Keys: 40, PayloadBytes: 300, Batch: 100, Runs: 1,
		Destination: &bench.Destination{
			Name:      "a fake",
			Publisher: publisher,
			Produce:   slow,
			Empty:     func(context.Context) error { emptied++; return nil },
		},
	}

	report, err := bench.Drain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}

	if got := int(sent.Load()); got != 2*cfg.Rows {
		t.Errorf("the producer sent %d, want %d: alone, and within the bare loop", got, 2*cfg.Rows)
	}
	bare, _ := report.Result(bench.Bare)
	producer, _ := report.Result(bench.Producer)
	relay, ok := report.Result(bench.Relay)
	together, _ := report.Result(bench.Together)
	limit := min(bare.Median, producer.Median)
	if !ok || relay.OfLimit != relay.Median/limit || producer.OfLimit != producer.Median/limit ||
		producer.Median > 1500 || together.OfLimit != together.Median/limit || together.Median > 1500 {
		t.Errorf("bare %+v, producer %+v, together %+v, relay %+v", bare, producer, together, relay)
	}
	if got := len(publisher.Stored()); got != cfg.Rows {
		t.Errorf("the broker has %d messages of the relay's, want %d", got, cfg.Rows)
	}
	if emptied != 5 {
		t.Errorf("emptied %d times, want it before each contestant", emptied)
	}
}

func TestDrainRefusesWhatMeasuresNothing(t *testing.T) {
	t.Parallel()

	good := bench.DrainConfig{
		Postgres:     testkit.Postgres(t).Pool().Config(),
		Rows:         1,
		Keys:         1,
		PayloadBytes: 64,
		Batch:        1,
		Runs:         1,
	}
	cases := map[string]func(c *bench.DrainConfig){
		"no database":               func(c *bench.DrainConfig) { c.Postgres = nil },
		"no rows":                   func(c *bench.DrainConfig) { c.Rows = 0 },
		"no keys":                   func(c *bench.DrainConfig) { c.Keys = 0 },
		"no batch":                  func(c *bench.DrainConfig) { c.Batch = 0 },
		"no runs":                   func(c *bench.DrainConfig) { c.Runs = 0 },
		"a payload without content": func(c *bench.DrainConfig) { c.PayloadBytes = 63 },
	}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate() refuses the smallest drain: %v", err)
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			change(&cfg)
			if _, err := bench.Drain(t.Context(), cfg); !errors.Is(err, bench.ErrInvalidConfig) {
				t.Errorf("Drain() error = %v, want %v", err, bench.ErrInvalidConfig)
			}
		})
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	report := bench.Report{
		Machine: bench.Machine{
			System: "linux/amd64", CPU: "CPU", CPUs: 2, Go: "go1.26", Postgres: "17.6", Settings: "fsync on",
		},
		Rows: 200_000, Keys: 1000, PayloadBytes: 300, Batch: 500,
		Results: []bench.Result{
			{
				Name:    bench.Bare,
				What:    "the limit",
				Runs:    []float64{90_000, 100_000, 110_000},
				Median:  100_000,
				OfLimit: 1,
				Busy:    []float64{0.9, 0.95, 0.85},
				Own:     []float64{0.3, 0.2, 0.1},
			},
			{
				Name:    bench.Relay,
				What:    "the relay",
				Runs:    []float64{70_000, 80_000, 75_000},
				Median:  75_000,
				OfLimit: 0.75,
				Busy:    []float64{1, 0.98, 0.99},
				Own:     []float64{0.4, 0.4, 0.5},
			},
		},
	}

	var printed, encoded bytes.Buffer
	if err := errors.Join(report.Print(&printed), report.WriteJSON(&encoded)); err != nil {
		t.Fatal(err)
	}

	want := `         rows/s  of limit  lowest  highest  busy   own
   bare  100000     100 %   90000   110000  90 %  20 %  the limit
  relay   75000      75 %   70000    80000  99 %  40 %  the relay
200000 rows of 300 bytes and 1000 keys, batches of 500, medians of 3; busy: the processors' time in use, own: by this process
linux/amd64, 2 × CPU, go1.26, PostgreSQL 17.6 (fsync on)
`
	if diff := cmp.Diff(want, printed.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	var back bench.Report
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, back); diff != "" {
		t.Errorf("read back from JSON (-want +got):\n%s", diff)
	}
}
