package desired_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/manifest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// read loads resources the way a cluster stores them.
func read(t *testing.T, paths ...string) *manifest.Set {
	t.Helper()
	schemas, err := manifest.LoadSchemas()
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Load(t.Context(), schemas, manifest.Options{SkipReferences: true}, paths...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func encode(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw) + "\n"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; if that is meant, run go test with -update (-want +got):\n%s", file, diff)
	}
}

// What the workers of a resource are given, and what must be mounted for them.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	samples := []string{"../../config/samples/orders-relay.yaml", "../../config/samples/billing-consumer.yaml"}
	for name, paths := range map[string][]string{
		"full": {"testdata/relay.yaml", "testdata/consumer.yaml"}, "samples": samples,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := read(t, paths...)
			in := desired.Inputs{Root: desired.Root}
			relay, consumer := set.Relays[0].OutboxRelay, set.Consumers[0].InboxConsumer
			relay.Generation, consumer.Generation = 3, 4

			relayConfig, err := desired.Relay(relay, in)
			if err != nil {
				t.Fatal(err)
			}
			consumerConfig, err := desired.Consumer(consumer, in)
			if err != nil {
				t.Fatal(err)
			}

			golden(t, name+".relay.json", encode(t, relayConfig))
			golden(t, name+".consumer.json", encode(t, consumerConfig))
			golden(t, name+".references.json", encode(t, map[string]any{
				"relay": desired.RelayReferences(relay), "consumer": desired.ConsumerReferences(consumer),
			}))
			// The file between the planes is read by strict parsers.
			if _, err := config.ParseRelay([]byte(encode(t, relayConfig))); err != nil {
				t.Errorf("a relay refuses its own configuration: %v", err)
			}
			if _, err := config.ParseConsumer([]byte(encode(t, consumerConfig))); err != nil {
				t.Errorf("a consumer refuses its own configuration: %v", err)
			}
		})
	}
}

// The other brokers of a relay: what its workers are given, what is mounted for them, and that the two agree.
func TestDestinations(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kafka", "rabbitmq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := read(t, "testdata/"+name+".yaml").Relays[0].OutboxRelay
			cfg, err := desired.Relay(relay, desired.Inputs{Root: "/root"})
			if err != nil {
				t.Fatal(err)
			}
			refs := desired.RelayReferences(relay)
			golden(t, name+".relay.json", encode(t, cfg))
			golden(t, name+".references.json", encode(t, refs))
			if _, err := config.ParseRelay([]byte(encode(t, cfg))); err != nil {
				t.Errorf("a relay refuses its own configuration: %v", err)
			}
			check(t, "/root", refs, encode(t, cfg))
			if got := cfg.SecretPaths(); len(got) != len(refs) {
				t.Errorf("%d paths of Secrets are watched, %d are mounted", len(got), len(refs))
			}
		})
	}
}

// A Secret for NATS logs in by exactly one of the ways there are: which one it is, its keys say.
func TestTheKeysOfASecret(t *testing.T) {
	t.Parallel()
	relay := read(t, "testdata/relay.yaml").Relays[0].OutboxRelay
	refs := desired.RelayReferences(relay)
	find := func(field string) desired.Reference {
		at := slices.IndexFunc(refs, func(r desired.Reference) bool { return r.Field == field })
		if at < 0 {
			t.Fatalf("no reference %s", field)
		}
		return refs[at]
	}
	nats := find("spec.destination.nats.credentialsSecretRef")
	database := find("spec.source.postgres.credentialsSecretRef")
	const ways = "the keys username and password, or the key nats-token, or the key nkey, or the key user.creds"
	cases := map[string]struct {
		ref  desired.Reference
		keys []string
		want string
	}{
		"a database's with both keys":       {database, []string{"username", "password", "x"}, ""},
		"a database's without its password": {database, []string{"username"}, "has no key password"},
		"an empty one for a database":       {database, nil, "has no key username and no key password"},
		"a user":                            {nats, []string{"username", "password"}, ""},
		"a token":                           {nats, []string{"nats-token"}, ""},
		"an NKey beside what is not ours":   {nats, []string{"nkey", "x"}, ""},
		"a credentials file":                {nats, []string{"user.creds"}, ""},
		"a user without a password":         {nats, []string{"username"}, "needs " + ways},
		"an empty one for NATS":             {nats, nil, "needs " + ways},
		"two logins": {
			nats,
			[]string{"username", "password", "user.creds"},
			"has keys of several logins (the keys username and password, the key user.creds): keep one",
		},
		"a login and half of another": {
			nats,
			[]string{"password", "nkey"},
			"has keys of several logins (the keys username and password, the key nkey): keep one",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tc.ref.Fault(func(key string) bool { return slices.Contains(tc.keys, key) })
			if got != tc.want {
				t.Errorf("Fault() = %q, want %q", got, tc.want)
			}
		})
	}
}

// The other brokers of a consumer, as TestDestinations has a relay's.
func TestSources(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kafka", "rabbitmq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			consumer := read(t, "testdata/"+name+"-consumer.yaml").Consumers[0].InboxConsumer
			cfg, err := desired.Consumer(consumer, desired.Inputs{Root: "/root"})
			if err != nil {
				t.Fatal(err)
			}
			refs := desired.ConsumerReferences(consumer)
			golden(t, name+".consumer.json", encode(t, cfg))
			golden(t, name+".consumer.references.json", encode(t, refs))
			if _, err := config.ParseConsumer([]byte(encode(t, cfg))); err != nil {
				t.Errorf("a consumer refuses its own configuration: %v", err)
			}
			check(t, "/root", refs, encode(t, cfg))
			if got := cfg.SecretPaths(); len(got) != len(refs) {
				t.Errorf("%d paths of Secrets are watched, %d are mounted", len(got), len(refs))
			}
		})
	}
}

// Each path of a configuration is the directory of a reference, and the other way round: nothing is read that is not
// mounted, and nothing mounted that is not read.
func TestMountsAndPathsAgree(t *testing.T) {
	t.Parallel()
	set := read(t, "testdata/relay.yaml", "testdata/consumer.yaml")
	const root = "/elsewhere/root"
	in := desired.Inputs{Root: root}
	relay, consumer := set.Relays[0].OutboxRelay, set.Consumers[0].InboxConsumer

	relayConfig, err := desired.Relay(relay, in)
	if err != nil {
		t.Fatal(err)
	}
	owner, managed := desired.RelayMigration(relay, in)
	if !managed {
		t.Error("schemaPolicy Managed is not seen")
	}
	check(t, root, desired.RelayReferences(relay), encode(t, relayConfig)+encode(t, owner))

	consumerConfig, err := desired.Consumer(consumer, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, managed := desired.ConsumerMigration(consumer, in); managed {
		t.Error("schemaPolicy Verify is taken for Managed")
	}
	check(t, root, desired.ConsumerReferences(consumer), encode(t, consumerConfig))
}

func check(t *testing.T, root string, refs []desired.Reference, encoded string) {
	t.Helper()
	var mounted []string
	for _, ref := range refs {
		mounted = append(mounted, ref.Directory(root))
	}
	var read []string
	for part := range strings.SplitSeq(encoded, `"`) {
		if path, ok := strings.CutSuffix(part, "/"+v1alpha1.KeyCA); ok {
			part = path
		}
		if strings.HasPrefix(part, root) {
			read = append(read, part)
		}
	}
	slices.Sort(mounted)
	slices.Sort(read)
	if diff := cmp.Diff(slices.Compact(mounted), slices.Compact(read)); diff != "" {
		t.Errorf("mounted and read differ (-mounted +read):\n%s", diff)
	}
}

func TestDerivedDefaults(t *testing.T) {
	t.Parallel()
	set := read(t, "testdata/consumer.yaml")
	consumer := set.Consumers[0].InboxConsumer
	cfg, err := desired.Consumer(consumer, desired.Inputs{Root: desired.Root})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NATS.Durable != "shop_eu_billing-2" {
		t.Errorf("durable = %q, want it from consumerName", cfg.NATS.Durable)
	}
	if cfg.Ordering.Versions != config.VersionsUnchecked {
		t.Errorf("versions = %q in mode None, want %q", cfg.Ordering.Versions, config.VersionsUnchecked)
	}
	consumer.Spec.Source.NATS.Durable = "mine"
	if cfg, err = desired.Consumer(consumer, desired.Inputs{Root: desired.Root}); err != nil {
		t.Fatal(err)
	}
	if cfg.NATS.Durable != "mine" {
		t.Errorf("durable = %q, want the given one", cfg.NATS.Durable)
	}
}

// Objects stored under an older schema reach us unchecked; their workers must not get what they cannot read.
func TestWhatTodaysSchemaRefusesIsAnError(t *testing.T) {
	t.Parallel()
	in := desired.Inputs{Root: desired.Root}
	set := read(t, "testdata/relay.yaml", "testdata/consumer.yaml")
	relay, consumer := set.Relays[0].OutboxRelay, set.Consumers[0].InboxConsumer
	relay.Spec.Lease.Duration, relay.Spec.Batch.PollInterval = "soon", "7d"
	consumer.Spec.Inbox.Retention = "1m"

	_, err := desired.Relay(relay, in)
	for _, want := range []string{"spec.lease.duration: ", "spec.batch.pollInterval: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Relay() error = %v, want it to name %s", err, want)
		}
	}
	if _, err := desired.Consumer(consumer, in); err == nil || !strings.Contains(err.Error(), "inbox.replayHorizon") {
		t.Errorf("Consumer() error = %v, want it to name inbox.replayHorizon", err)
	}
}

// The builders are pure: what they return shares nothing with the resource.
func TestConfigurationsShareNothingWithTheResource(t *testing.T) {
	t.Parallel()
	set := read(t, "testdata/relay.yaml")
	relay := set.Relays[0].OutboxRelay
	before := relay.DeepCopy()
	cfg, err := desired.Relay(relay, desired.Inputs{Root: desired.Root})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Source.Hosts[0], cfg.NATS.Servers[0], cfg.Allowed[0] = "x", "x", "x"
	if diff := cmp.Diff(before, relay); diff != "" {
		t.Errorf("the resource changed (-before +after):\n%s", diff)
	}
}
