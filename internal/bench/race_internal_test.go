package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/test/testkit"
)

// What a racer's outbox is filled with is what the relay's holds.
func TestRowsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	cfg := DrainConfig{
		Postgres: testkit.Postgres(t).Pool().Config(), Rows: 25, Keys: 4, PayloadBytes: 300, Batch: 10, Runs: 1,
	}
	db, err := openTable(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close(t.Context())
	if err := db.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := db.plain.Query(t.Context(), db.names.SQL(
		`SELECT ordering_key || ' ' || convert_from(payload, 'UTF8') FROM {outbox} ORDER BY position`))
	if err != nil {
		t.Fatal(err)
	}
	var inTable []string
	for rows.Next() {
		var row string
		if err := rows.Scan(&row); err != nil {
			t.Fatal(err)
		}
		inTable = append(inTable, row)
	}
	var made []string
	for key, payload := range (Rows{cfg.Rows, cfg.Keys, cfg.PayloadBytes}).All() {
		if len(payload) != cfg.PayloadBytes {
			t.Fatalf("%d bytes: %s", len(payload), payload)
		}
		made = append(made, key+" "+payload)
	}
	if !slices.Equal(inTable, made) {
		t.Errorf("in the table:\n%s\nmade:\n%s", strings.Join(inTable, "\n"), strings.Join(made, "\n"))
	}
}

func TestPeakMemory(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		status  string
		want    float64
		wantErr bool
	}{
		"the peak, not what is occupied now": {
			status: "Name:\trelay\nVmHWM:\t   75264 kB\nVmRSS:\t   61000 kB\n", want: 75264 * 1024,
		},
		"a system that does not tell": {status: "Name:\trelay\n", wantErr: true},
		"nonsense":                    {status: "VmHWM:\tmuch kB\n", wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := parsePeak(tc.status); got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("parsePeak() = %v, %v", got, err)
			}
		})
	}
}

// memoryTopic is a topic in memory.
type memoryTopic struct {
	mu       sync.Mutex
	payloads []string
}

func (m *memoryTopic) send(payloads ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.payloads = append(m.payloads, payloads...)
}

func (m *memoryTopic) topic() Topic {
	return Topic{
		Empty: func(context.Context) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.payloads = nil
			return nil
		},
		Count: func(context.Context) (int, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.payloads), nil
		},
		Read: func(_ context.Context, take func([]byte) error) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range m.payloads {
				if err := take([]byte(p)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// scripted sends what its script makes of the rows, and may end by itself then.
type scripted struct {
	topic   *memoryTopic
	script  func(rows []string) []string
	startup error
	end     error

	rows    []string
	lost    chan struct{}
	stopped bool
}

func (s *scripted) Fill(_ context.Context, rows Rows) error {
	for _, payload := range rows.All() {
		s.rows = append(s.rows, payload)
	}
	return nil
}

func (s *scripted) Start(context.Context) (Drainer, error) {
	if s.startup != nil {
		return nil, s.startup
	}
	s.lost = make(chan struct{})
	s.topic.send(s.script(s.rows)...)
	if s.end != nil {
		close(s.lost)
	}
	return s, nil
}

func (s *scripted) Stop(context.Context) error   { s.stopped = true; return nil }
func (s *scripted) PeakMemory() (float64, error) { return 64 * mebibyte, nil }
func (s *scripted) Lost() <-chan struct{}        { return s.lost }
func (s *scripted) Err() error                   { return s.end }

// A run counts only when each row has really arrived, once.
func TestARunIsValidOnlyWithAllRows(t *testing.T) {
	t.Parallel()
	faithful := func(rows []string) []string { return rows }
	cases := map[string]struct {
		racer   scripted
		wantErr string
	}{
		"every row once": {racer: scripted{script: faithful}},
		"in another order": {racer: scripted{script: func(rows []string) []string {
			slices.Reverse(rows)
			return rows
		}}},
		"one row twice in place of another": {
			racer:   scripted{script: func(rows []string) []string { return append(rows[:9:9], rows[0]) }},
			wantErr: "row 0 arrived twice",
		},
		"a record of somebody else in place of a row": {
			racer:   scripted{script: func(rows []string) []string { return append(rows[:9:9], "hello") }},
			wantErr: "a record of 5 bytes is none of the rows",
		},
		"a row of another, larger outbox": {
			racer: scripted{script: func(rows []string) []string {
				return append(rows[:9:9], strings.Replace(rows[9], "000000000009", "000000000010", 1))
			}},
			wantErr: "is none of the rows",
		},
		"more records than rows": {
			racer:   scripted{script: func(rows []string) []string { return append(rows, rows[0]) }},
			wantErr: "row 0 arrived twice",
		},
		"a process that ends on the way": {
			racer: scripted{
				script: func(rows []string) []string { return rows[:4] }, end: errors.New("out of memory"),
			},
			wantErr: "out of memory",
		},
		"a process that does not start": {
			racer: scripted{startup: errors.New("no such file")}, wantErr: "no such file",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var topic memoryTopic
			racer := tc.racer
			racer.topic = &topic
			cfg := RaceConfig{DrainConfig: DrainConfig{Rows: 10, Keys: 3, PayloadBytes: 100}, Topic: topic.topic()}

			got, err := cfg.run(t.Context(), &racer)

			if racer.startup == nil && !racer.stopped {
				t.Error("the racer was not stopped")
			}
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("run() = %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || got.rate <= 0 || got.memory != 64*mebibyte {
				t.Errorf("run() = %+v, %v", got, err)
			}
		})
	}
}

func TestARunThatIsGivenUpSaysWhatHadArrived(t *testing.T) {
	t.Parallel()
	var topic memoryTopic
	racer := scripted{topic: &topic, script: func(rows []string) []string { return rows[:4] }}
	cfg := RaceConfig{DrainConfig: DrainConfig{Rows: 10, Keys: 3, PayloadBytes: 100}, Topic: topic.topic()}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("given up"))
	defer cancel()

	_, err := cfg.run(ctx, &racer)

	if err == nil || !strings.Contains(err.Error(), "4 of 10 are there: given up") || !racer.stopped {
		t.Errorf("run() = %v, stopped %v", err, racer.stopped)
	}
}

func TestTheRelayIsJudgedByItsRivals(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		relay, rival, relayMemory, rivalMemory, together float64
		missed                                           []string
		notShown                                         string
	}{
		"twice as fast with a twentieth of the memory": {relay: 100, rival: 50, relayMemory: 50, rivalMemory: 1000},
		"exactly at the bars":                          {relay: 85, rival: 50, relayMemory: 100, rivalMemory: 1000},
		"too slow": {
			relay: 80, rival: 50, relayMemory: 50, rivalMemory: 1000,
			missed: []string{"the relay's rate: 1.6 times that of debezium, the bar is at least 1.7"},
		},
		"too large": {
			relay: 100, rival: 50, relayMemory: 150, rivalMemory: 1000,
			missed: []string{"the relay's memory: 0.15 of that of debezium, the bar is at most 0.1"},
		},
		"as fast as the machine can do it": {
			relay:       70,
			rival:       50,
			relayMemory: 50,
			rivalMemory: 1000,
			together:    80,
			notShown: "1.7 times the rate of debezium: the bare loop with the broker's own client, without a relay, reaches 1.6 " +
				"times, the relay 1.4 times",
		},
		"faster than the machine seemed to allow": {
			relay: 90, rival: 50, relayMemory: 50, rivalMemory: 1000, together: 80,
		},
		"too slow for what the machine can do": {
			relay: 50, rival: 50, relayMemory: 50, rivalMemory: 1000, together: 80,
			missed:   []string{"the relay's rate: 0.625 times that of together, the bar is at least 0.7"},
			notShown: "1.7 times the rate of debezium",
		},
		"too slow where the machine can do more": {
			relay: 80, rival: 50, relayMemory: 50, rivalMemory: 1000, together: 85,
			missed: []string{"the relay's rate: 1.6 times that of debezium, the bar is at least 1.7"},
		},
		"both": {
			relay: 50, rival: 50, relayMemory: 150, rivalMemory: 1000,
			missed: []string{"the relay's rate: 1 times", "the relay's memory: 0.15 of"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f Finding
			f.add(Relay, "rows/s", "", tc.relay)
			f.add(memoryOf(Relay), "MiB", "", tc.relayMemory)
			f.add("debezium", "rows/s", "", tc.rival)
			f.add(memoryOf("debezium"), "MiB", "", tc.rivalMemory)

			if tc.together > 0 {
				f.add(Together, "rows/s", "", tc.together)
			}

			judge(&f, []Rival{{Name: "debezium", Rate: 1.7, Memory: 0.1}})

			if got := strings.Join(
				f.NotShown,
				"; ",
			); !strings.HasPrefix(got, tc.notShown) ||
				(got == "") != (tc.notShown == "") {
				t.Errorf("not shown: %q, want %q", got, tc.notShown)
			}

			err := f.Verdict()
			if (err != nil) != (len(tc.missed) > 0) {
				t.Errorf("Verdict() = %v", err)
			}
			for _, missed := range tc.missed {
				if !strings.Contains(fmt.Sprint(err), missed) {
					t.Errorf("Verdict() = %v, want %q in it", err, missed)
				}
			}
		})
	}
}
