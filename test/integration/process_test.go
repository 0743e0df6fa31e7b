package integration

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// TestProcesses runs the workers' binaries on real servers.
func TestProcesses(t *testing.T) {
	t.Parallel()
	bin := buildCommands(t)

	cases := map[string]func(*shop){
		"move rows, tell how they stand, and drain":              moveAndDrain,
		"lose nothing when they are killed":                      killed,
		"keep the old config when a new one is bad":              badReload,
		"take a new config over without a restart":               goodReload,
		"follow rotated credentials":                             rotated,
		"wait for what is missing and go on when it comes":       lateEnvironment,
		"publish nothing late when they wake up after the lease": zombie,
		"end at once at a second signal":                         secondSignal,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.bin = bin
			run(s)
		})
	}
}

func moveAndDrain(s *shop) {
	t, bin := s.t, s.bin
	relay := launch(t, bin, "relay", s.relay)
	consumer := launch(t, bin, "consumer", s.consumer)
	s.write(300)
	s.arrives(300)

	relay.becomes("DatabaseReachable", "True Reachable")
	relay.becomes("SchemaReady", "True SchemaCurrent")
	relay.becomes("BrokerReachable", "True Reachable")
	relay.becomes("InsecureTransport", "True PlainText")
	consumer.becomes("SourceReachable", "True Reachable")
	testkit.Eventually(t, patience, "the relay reports an empty backlog and all shards", func() bool {
		r := relay.report()
		return r != nil && r.Relay != nil && r.Relay.Backlog != nil && r.Relay.Backlog.Messages == 0 &&
			len(r.Relay.HeldShards) == 4 && r.Relay.PublishedTotal == 300 && r.Generation == 1 && r.Name == "orders"
	})
	testkit.Eventually(t, patience, "the consumer reports no lag", func() bool {
		r := consumer.report()
		return r != nil && r.Consumer != nil && r.Consumer.Lag != nil && r.Consumer.Lag.Messages == 0 &&
			r.Consumer.AppliedTotal == 300
	})
	s.answersAndIsSilent(relay)
	s.answersAndIsSilent(consumer)
	s.drains(relay)
	s.drains(consumer)
	held := testkit.Value[int](s.orders.DB,
		"SELECT count(*) FROM message_outbox_lease WHERE holder IS NOT NULL AND held_until > clock_timestamp()")
	if held != 0 {
		t.Errorf("%d leases are still held after the drain", held)
	}
}

// answersAndIsSilent asks every endpoint.
func (s *shop) answersAndIsSilent(p *process) {
	s.t.Helper()
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz": "ok", "/metrics": "postrider_build_info", "/statusz": `"version":1`,
	} {
		status, body := p.get(path)
		if status != http.StatusOK || !strings.Contains(body, want) {
			s.t.Errorf("%s of the %s = %d %s", path, p.name, status, tail(body))
		}
		silent(s.t, path+" of the "+p.name, body)
	}
}

// drains sends SIGTERM and looks how the process ends.
func (s *shop) drains(p *process) {
	s.t.Helper()
	p.signal(syscall.SIGTERM)
	if code, took := p.exit(); code != 0 || took > 2*time.Second {
		s.t.Errorf("the %s drained in %v with code %d, want 0 within 2 s", p.name, took, code)
	}
	silent(s.t, "what the "+p.name+" printed", p.output())
}

func killed(s *shop) {
	t, bin := s.t, s.bin
	// What a dead process held comes again after AckWait: a durable that waits less keeps the test short.
	_, err := s.broker.JetStream().CreateConsumer(t.Context(), s.stream.Name, jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 3 * time.Second, MaxDeliver: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	relay := launch(t, bin, "relay", s.relay)
	consumer := launch(t, bin, "consumer", s.consumer)
	const rounds, each = 3, 200
	for round := 1; round <= rounds; round++ {
		s.write(each)
		testkit.Eventually(t, patience, "some of the round have arrived", func() bool {
			return s.effects() > (round-1)*each
		})
		relay.signal(syscall.SIGKILL)
		consumer.signal(syscall.SIGKILL)
		relay.exit()
		consumer.exit()
		relay = launch(t, bin, "relay", s.relay)
		consumer = launch(t, bin, "consumer", s.consumer)
	}
	s.arrives(rounds * each)
	silent(t, "what they printed", relay.output()+consumer.output())
}

func badReload(s *shop) {
	t, bin := s.t, s.bin
	relay := launch(t, bin, "relay", s.relay)
	consumer := launch(t, bin, "consumer", s.consumer)
	good := map[*process]any{relay: s.relay, consumer: s.consumer}

	other := s.relay
	other.Resource.UID, other.Resource.Generation = "uid-another", 2
	cases := []struct {
		p       *process
		content any
		want    string
	}{
		{relay, map[string]any{"version": 1, "runPolicy": "Go"}, "runPolicy: must be Run or Pause or Drain"},
		{relay, other, "another needs a restart"},
		{consumer, map[string]any{"verzion": 1}, "verzion: is not a field of this version"},
	}
	for _, tc := range cases {
		tc.p.configure(tc.content)
		testkit.Eventually(t, patience, "the "+tc.p.name+" says why it refuses", func() bool {
			r := tc.p.report()
			return r != nil && strings.Contains(r.ConfigError, tc.want) && r.Generation == 1
		})
		tc.p.configure(good[tc.p])
		testkit.Eventually(t, patience, "the "+tc.p.name+" takes it back", func() bool {
			r := tc.p.report()
			return r != nil && r.ConfigError == ""
		})
	}
	relay.write([]byte("{"))
	testkit.Eventually(t, patience, "half a file is refused", func() bool {
		r := relay.report()
		return r != nil && strings.Contains(r.ConfigError, "config.json: line 1: it is not one JSON object")
	})
	s.write(50)
	s.arrives(50) // by the config that stayed in force
	if status, body := relay.get("/readyz"); status != http.StatusOK {
		t.Errorf("readyz = %d %s", status, body)
	}
	if !strings.Contains(relay.output(), "Config refused, the old one stays in force") {
		t.Error("the log does not say so")
	}
}

func goodReload(s *shop) {
	t, bin := s.t, s.bin
	relay := launch(t, bin, "relay", s.relay)
	consumer := launch(t, bin, "consumer", s.consumer)
	s.write(20)
	s.arrives(20)

	paused := s.relay
	paused.RunPolicy, paused.Resource.Generation = config.RunPolicyPause, 2
	relay.configure(paused)
	testkit.Eventually(t, patience, "the relay is paused", func() bool {
		r := relay.report()
		return r != nil && r.RunPolicy == config.RunPolicyPause && r.Generation == 2
	})
	s.write(20)

	// Another limit of connections takes new connections, in place of the old ones.
	again := s.relay
	again.Resource.Generation, again.Source.MaxConnections = 3, 6
	relay.configure(again)
	changed := s.consumer
	changed.Resource.Generation, changed.Concurrency.Lanes, changed.Concurrency.Prefetch = 2, 2, 50
	consumer.configure(changed)
	s.arrives(40)
	testkit.Eventually(t, patience, "both report the new generation", func() bool {
		r, c := relay.report(), consumer.report()
		return r != nil && c != nil && r.Generation == 3 && c.Generation == 2
	})
	if !relay.running() || !consumer.running() {
		t.Error("a worker restarted")
	}
}

func rotated(s *shop) {
	t, bin := s.t, s.bin
	relay := launch(t, bin, "relay", s.relay)
	consumer := launch(t, bin, "consumer", s.consumer)
	s.write(20)
	s.arrives(20)
	for _, p := range []*place{s.orders, s.billing} {
		quoted := pgx.Identifier{p.user}.Sanitize()
		p.password = passwordCanary + "-2"
		p.Exec("ALTER ROLE " + quoted + " PASSWORD '" + p.password + "'")
		p.credentials(p.user, p.password)
		// The old connections end: only the new password gets in.
		p.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", p.user)
	}
	s.write(20)
	s.arrives(40)
	if !relay.running() || !consumer.running() {
		t.Error("a worker restarted")
	}
	silent(t, "what they printed", relay.output()+consumer.output())
}

func lateEnvironment(s *shop) {
	t, bin := s.t, s.bin
	password := filepath.Join(s.orders.cfg.CredentialsDir, "password")
	if err := os.Remove(password); err != nil {
		t.Fatal(err)
	}
	wrong := s.relay
	wrong.Source.Hosts = []string{"no-such-host.invalid"}
	nats := *s.relay.NATS
	nats.Stream = "LATER_" + s.stream.Name
	wrong.NATS = &nats
	relay := launch(t, bin, "relay", wrong)
	relay.becomes("DatabaseReachable", "False SecretNotFound")
	if status, _ := relay.get("/readyz"); status != http.StatusOK {
		t.Errorf("readyz = %d: it says whether the loops run, not whether a server answers", status)
	}

	s.orders.credentials(s.orders.user, passwordCanary+"-wrong")
	relay.becomes("DatabaseReachable", "False Unreachable")

	wrong.Source.Hosts = s.relay.Source.Hosts
	wrong.Resource.Generation = 2
	relay.configure(wrong)
	relay.becomes("DatabaseReachable", "False AuthFailed")

	s.orders.Exec("ALTER TABLE message_outbox RENAME TO hidden_outbox")
	s.orders.credentials(s.orders.user, s.orders.password)
	relay.becomes("DatabaseReachable", "True Reachable")
	if state, message := relay.condition("SchemaReady"); !strings.HasPrefix(state, "False ") ||
		!strings.Contains(message, "message_outbox is missing") {
		t.Errorf("SchemaReady is %q: %s", state, message)
	}

	s.orders.Exec("ALTER TABLE hidden_outbox RENAME TO message_outbox")
	relay.becomes("SchemaReady", "True SchemaCurrent")
	relay.becomes("BrokerReachable", "False StreamMissing")

	wrong.NATS = s.relay.NATS
	wrong.Resource.Generation = 3
	relay.configure(wrong)
	consumer := launch(t, bin, "consumer", s.consumer)
	s.write(20)
	s.arrives(20)
	relay.becomes("BrokerReachable", "True Reachable")
	silent(t, "what they printed", relay.output()+consumer.output())
}

func zombie(s *shop) {
	t, bin := s.t, s.bin
	first := launch(t, bin, "relay", s.relay)
	launch(t, bin, "consumer", s.consumer)
	s.write(100)
	s.arrives(100)

	first.signal(syscall.SIGSTOP)
	second := launch(t, bin, "relay", s.relay)
	s.write(100)
	s.arrives(200) // the second one has taken the shards over
	s.write(100)
	first.signal(syscall.SIGCONT)
	s.write(100)
	s.arrives(400)
	testkit.Eventually(t, patience, "the shards are shared again", func() bool {
		a, b := first.report(), second.report()
		return a != nil && b != nil && a.Relay != nil && b.Relay != nil &&
			len(a.Relay.HeldShards) == 2 && len(b.Relay.HeldShards) == 2
	})
	if !first.running() {
		t.Error("the one that woke up did not go on")
	}
}

// secondSignal has a database that answers nothing any more, so that the drain takes its time.
func secondSignal(s *shop) {
	t := s.t
	proxy := testkit.Proxy(t, s.orders.Addr())
	s.relay.Source.Hosts, s.relay.Source.Port = []string{proxy.Host}, int32(proxy.Port)
	relay := launch(t, s.bin, "relay", s.relay)
	relay.becomes("DatabaseReachable", "True Reachable")
	proxy.Swallow(testkit.Both)

	start := time.Now()
	if r := relay.report(); r == nil || r.Relay == nil || r.Relay.Backlog != nil {
		t.Errorf("report = %+v, want one without counts that nobody knows", r)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("the report took %v, longer than its readers wait", took)
	}
	relay.signal(syscall.SIGTERM)
	testkit.Eventually(t, patience, "it drains and says so", func() bool {
		status, body := relay.get("/readyz")
		return status == http.StatusServiceUnavailable && body == "draining\n"
	})
	relay.signal(syscall.SIGTERM)
	if code, took := relay.exit(); code == 0 || took > time.Second {
		t.Errorf("it ended with code %d after %v, want at once and not as if it had drained", code, took)
	}
}

func TestProcessesRefuseWhatTheyCannotUseInOneLine(t *testing.T) {
	t.Parallel()
	bin := buildCommands(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, []byte(`{"version": 1, "shards": 8}`), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })

	cases := map[string]struct {
		args []string
		want string
	}{
		"an unknown field": {[]string{"--config", file, "--listen", "127.0.0.1:0"}, file + ": shards: is not a field"},
		"a missing file": {
			[]string{"--config", filepath.Join(dir, "none"), "--listen", "127.0.0.1:0"},
			"none: cannot read it: no such file",
		},
		"a port in use": {
			[]string{"--config", file, "--listen", taken.Addr().String()},
			"choose another with --listen",
		},
	}
	for name, tc := range cases {
		for _, command := range []string{"relay", "consumer"} {
			t.Run(name+" by the "+command, func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, command), tc.args...)
				out, _ := cmd.CombinedOutput() // the code is looked at
				if code := cmd.ProcessState.ExitCode(); code != 1 {
					t.Errorf("exit code = %d, want 1", code)
				}
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				if len(lines) != 1 || !strings.Contains(lines[0], tc.want) {
					t.Errorf("printed %q, want one line with %q", out, tc.want)
				}
			})
		}
	}
}
