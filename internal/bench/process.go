package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/config"
)

// Program is a relay as it is shipped: a process of its own.
type Program struct {
	// Path is the relay's executable.
	Path string
	// NATS or Kafka is what it publishes to.
	NATS  *config.NATS
	Kafka *config.Kafka
	// Env is added to the environment of the process.
	Env []string
}

const (
	scrapeLimit = 5 * time.Second
	// watchEvery is how often a process is looked at while it works.
	watchEvery = 200 * time.Millisecond
)

// process is a relay that runs. It ends with this program.
type process struct {
	*Running
	address string
}

// startProcess starts the relay on the table and returns when it answers.
func (t *table) startProcess(ctx context.Context, program Program) (_ *process, err error) {
	dir, err := os.MkdirTemp("", "postrider-bench-relay-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	abandon := func(err error) (*process, error) { return nil, errors.Join(err, os.RemoveAll(dir)) }
	secret := filepath.Join(dir, "secret") // a folder of its own: what is written beside a password makes it look new
	configFile, err := writeConfig(dir, relayFile(t, program, secret), t.cfg.Postgres)
	if err != nil {
		return abandon(err)
	}
	address, err := FreeAddress(ctx)
	if err != nil {
		return abandon(err)
	}
	running, err := Command{
		Path: program.Path, Args: []string{"--config", configFile, "--listen", address, "--allow-loopback"},
		Env: program.Env, Address: address, Dir: dir,
	}.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &process{running, address}, nil
}

// relayFile is the config of a relay with the settings that a resource has by default.
func relayFile(t *table, program Program, secret string) config.Relay {
	conn := t.cfg.Postgres.ConnConfig
	seconds := func(n int) config.Duration { return config.Duration(time.Duration(n) * time.Second) }
	return config.Relay{
		Version:   config.Version,
		RunPolicy: config.RunPolicyRun,
		Resource:  config.Resource{Namespace: "bench", Name: "relay", UID: "bench", Generation: 1},
		Source: config.Postgres{
			Hosts: []string{conn.Host}, Port: int32(conn.Port), Database: conn.Database, Schema: t.names.Schema,
			CredentialsDir: secret, TLS: config.TLS{Mode: config.TLSInsecure}, MaxConnections: maxConnections,
		},
		Outbox: config.Outbox{
			Table:              t.names.Outbox,
			Shards:             shards,
			PublishedRetention: config.Duration(168 * time.Hour),
		},
		NATS:         program.NATS,
		Kafka:        program.Kafka,
		Ordering:     config.OrderingPerKey,
		OnDeadLetter: config.BlockKey,
		Lease:        seconds(30),
		Batch: config.Batch{
			MaxMessages: int32(t.cfg.Batch), MaxBytes: maxBytes, //nolint:gosec // a few hundred
			PollInterval: config.Duration(pollInterval), PublishTimeout: seconds(10),
		},
		Backoff: config.Backoff{Initial: seconds(1), Max: seconds(60)},
		Budget: config.Budget{
			MaxAttempts: 10, MaxElapsed: seconds(24 * 60 * 60), RetryPercent: 20, MinRetriesPerSecond: 10,
		},
		StatusTick: config.Duration(statusInterval),
	}
}

// writeConfig writes the config and the database's credentials that it names, and returns the path of the former.
func writeConfig(dir string, cfg config.Relay, database *pgxpool.Config) (path string, err error) {
	raw, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the relay's config: %w", err)
	}
	secret, path := cfg.Source.CredentialsDir, filepath.Join(dir, "config.json")
	err = errors.Join(os.Mkdir(secret, 0o700), os.WriteFile(path, raw, 0o600),
		os.WriteFile(filepath.Join(secret, "username"), []byte(database.ConnConfig.User), 0o600),
		os.WriteFile(filepath.Join(secret, "password"), []byte(database.ConnConfig.Password), 0o600))
	if err != nil {
		return "", fmt.Errorf("write the relay's config: %w", err)
	}
	return path, nil
}

// get asks an endpoint of the process and hands the answer over.
func (p *process) get(ctx context.Context, path string, read func(*http.Response) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask the relay: %w", err)
	}
	response, err := (&http.Client{Timeout: scrapeLimit}).Do(request)
	if err != nil {
		if lost := p.Err(); lost != nil {
			err = lost
		}
		return fmt.Errorf("ask the relay: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the relay: %s says %s", path, response.Status)
	}
	return read(response)
}

// reading is what a process says of itself at one time.
type reading struct {
	at time.Time
	// rss is the memory that it occupies in bytes, cpu the processor time that it has used.
	rss float64
	cpu time.Duration
	// confirmed counts the messages that the broker took, held the shards that the process holds.
	confirmed, held int
}

// read reads the metrics of the process.
func (p *process) read(ctx context.Context) (r reading, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	var families map[string]*dto.MetricFamily
	err = p.get(ctx, "/metrics", func(response *http.Response) (err error) {
		families, err = parser.TextToMetricFamilies(response.Body)
		return err
	})
	if err != nil {
		return r, err
	}
	sum := func(name string) (total float64) {
		for _, m := range families[name].GetMetric() {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return total
	}
	r = reading{
		at:   time.Now(),
		rss:  sum("process_resident_memory_bytes"),
		held: int(sum("postrider_outbox_lease_held")),
	}
	r.cpu = time.Duration(sum("process_cpu_seconds_total") * float64(time.Second))
	for _, m := range families["postrider_outbox_publish_results_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "outcome" && l.GetValue() == broker.Confirmed.String() {
				r.confirmed += int(m.GetCounter().GetValue())
			}
		}
	}
	return r, nil
}

// watch reads the process again and again until the look says that this is enough.
func (p *process) watch(ctx context.Context, enough func(reading) bool) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		r, err := p.read(ctx)
		if err != nil {
			return err
		}
		if enough(r) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
