package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/bench"
	"github.com/postrider/postrider/test/testkit"
)

// client is a racer without a database: Kafka's client sends the rows as they are.
type client struct {
	*kgo.Client

	records []*kgo.Record
}

func (c *client) Fill(_ context.Context, rows bench.Rows) error {
	c.records = c.records[:0]
	for key, payload := range rows.All() {
		c.records = append(c.records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(payload)})
	}
	return nil
}

func (c *client) Start(ctx context.Context) (bench.Drainer, error) {
	return c, c.ProduceSync(ctx, c.records...).FirstErr()
}

func (c *client) Stop(context.Context) error   { return nil }
func (c *client) PeakMemory() (float64, error) { return 1 << 30, nil }
func (c *client) Lost() <-chan struct{}        { return nil }
func (c *client) Err() error                   { return nil }

func openClient(_ context.Context, g ground) (bench.Rival, func(context.Context) error, error) {
	conn, err := kgo.NewClient(kgo.SeedBrokers(g.broker))
	if err != nil {
		return bench.Rival{}, nil, err
	}
	end := func(context.Context) error { conn.Close(); return nil }
	return bench.Rival{Racer: &client{Client: conn}, Name: "client", WarmUps: 1, Rate: 0.001, Memory: 0.5}, end, nil
}

// The relay's own process races on real servers. The peers are too large for a test: something small stands in for them.
func TestTheRelayRacesOnRealServers(t *testing.T) { //nolint:paralleltest // sets the folder for temporary files
	leavesNothing(t)
	var out bytes.Buffer
	cfg := bench.RaceConfig{DrainConfig: bench.DrainConfig{
		Rows: 600, Keys: 40, PayloadBytes: 300, Batch: 100, Runs: 2, Progress: &out,
	}}

	finding, err := race(t.Context(), []peer{{"client", openClient}}, cfg)
	if err != nil {
		t.Fatalf("race() = %v\n%s", err, &out)
	}
	if err := finding.Verdict(); err != nil {
		t.Errorf("Verdict() = %v", err)
	}
	for _, name := range []string{bench.Relay, bench.Relay + "'s memory", "client", "client's memory"} {
		if finding.Median(name) <= 0 {
			t.Errorf("no %s: %+v", name, finding.Quantities)
		}
	}
	if finding.Median(bench.Together) <= 0 || finding.Median(bench.Together+"'s memory") != 0 {
		t.Errorf("the bare loop with Kafka's client: %+v", finding.Quantities)
	}
	if got := strings.Count(out.String(), "\n"); got != 1+3*cfg.Runs {
		t.Errorf("%d lines of progress:\n%s", got, &out)
	}
}

// A peer that cannot be had is named, and what was started for it ends.
func TestAPeerThatCannotRaceIsNamed(t *testing.T) { //nolint:paralleltest // sets the folder for temporary files
	leavesNothing(t)
	ended := false
	unfit := peer{"unfit", func(context.Context, ground) (bench.Rival, func(context.Context) error, error) {
		return bench.Rival{}, func(context.Context) error { ended = true; return nil }, errors.New("no such jar")
	}}
	cfg := bench.RaceConfig{DrainConfig: bench.DrainConfig{Rows: 1, Keys: 1, PayloadBytes: 300, Batch: 1, Runs: 1}}

	_, err := race(t.Context(), []peer{unfit}, cfg)

	if err == nil || !strings.Contains(err.Error(), "unfit: no such jar") || !ended {
		t.Errorf("race() = %v, ended: %v", err, ended)
	}
}

// leavesNothing has temporary files made in a folder that must be empty in the end.
func leavesNothing(t *testing.T) {
	t.Helper()
	dir := testkit.ServerDir(t)
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

func TestAnUnknownPeerIsNamed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{"peers", "-against", "watermill,pigeon"}, &out)
	if err == nil || !strings.Contains(err.Error(), "pigeon is none of watermill, debezium") {
		t.Errorf("run() = %v\n%s", err, &out)
	}
}

func TestWhatArrivedIsCountedOverAllPartitions(t *testing.T) {
	t.Parallel()
	var from, to kadm.Offsets
	from.AddOffset(topic, 0, 10, -1)
	from.AddOffset(topic, 1, 0, -1)
	to.AddOffset(topic, 0, 14, -1)
	to.AddOffset(topic, 1, 3, -1)
	to.AddOffset(topic, 2, 2, -1) // of which nothing was known
	if got := arrived(from, to); got != 9 {
		t.Errorf("arrived() = %d, want 9", got)
	}
}
