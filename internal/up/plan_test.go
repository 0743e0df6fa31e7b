package up

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/local"
)

// relayOf is a relay with the words a plan reads: database user, owner and NATS user are the names of Secrets. The first
// subject is the one of the spec, the others are allowed.
func relayOf(database, host, user, owner, natsUser, stream string, subjects ...string) v1alpha1.OutboxRelay {
	var r v1alpha1.OutboxRelay
	r.Namespace, r.Name = "shop", "relay"
	r.Spec.Source.Postgres = postgresOf(database, host, user)
	if owner != "" {
		r.Spec.Outbox.MigrationCredentialsSecretRef = &v1alpha1.SecretReference{Name: owner}
	}
	r.Spec.Destination.NATS = &v1alpha1.NATSDestination{}
	r.Spec.Destination.NATS.NATSConnection = natsOf(natsUser, stream)
	r.Spec.Destination.NATS.Subject = v1alpha1.Subject(subjects[0])
	for _, a := range subjects[1:] {
		r.Spec.Destination.Allowed = append(r.Spec.Destination.Allowed, v1alpha1.SubjectPattern(a))
	}
	return r
}

func consumerOf(database, host, user, owner, natsUser, stream string, subjects ...string) v1alpha1.InboxConsumer {
	var c v1alpha1.InboxConsumer
	c.Namespace, c.Name = "shop", "consumer"
	c.Spec.Inbox.Postgres = postgresOf(database, host, user)
	if owner != "" {
		c.Spec.Inbox.MigrationCredentialsSecretRef = &v1alpha1.SecretReference{Name: owner}
	}
	c.Spec.Source.NATS = &v1alpha1.NATSSource{}
	c.Spec.Source.NATS.NATSConnection = natsOf(natsUser, stream)
	for _, s := range subjects {
		c.Spec.Source.NATS.FilterSubjects = append(c.Spec.Source.NATS.FilterSubjects, v1alpha1.SubjectPattern(s))
	}
	return c
}

func kafkaRelayOf(user, topic string, allowed ...v1alpha1.SubjectPattern) v1alpha1.OutboxRelay {
	r := relayOf("orders", "a", "relay", "", "", "", "x")
	r.Spec.Destination = v1alpha1.Destination{
		Kafka:   &v1alpha1.KafkaDestination{KafkaConnection: clusterOf(user), Topic: v1alpha1.TopicName(topic)},
		Allowed: allowed,
	}
	return r
}

func kafkaConsumerOf(user string, topics ...v1alpha1.TopicName) v1alpha1.InboxConsumer {
	c := consumerOf("orders", "a", "relay", "", "", "")
	c.Spec.Source = v1alpha1.ConsumerSource{
		Kafka: &v1alpha1.KafkaSource{KafkaConnection: clusterOf(user), Topics: topics},
	}
	return c
}

func clusterOf(user string) v1alpha1.KafkaConnection {
	k := v1alpha1.KafkaConnection{BootstrapServers: []v1alpha1.ServerAddress{"kafka"}}
	if user != "" {
		k.SASL = &v1alpha1.KafkaSASL{CredentialsSecretRef: v1alpha1.SecretReference{Name: user}}
	}
	return k
}

func postgresOf(database, host, user string) v1alpha1.Postgres {
	return v1alpha1.Postgres{
		Hosts: []v1alpha1.Host{v1alpha1.Host(host)}, Database: database,
		CredentialsSecretRef: v1alpha1.SecretReference{Name: user},
	}
}

func natsOf(user, stream string) v1alpha1.NATSConnection {
	n := v1alpha1.NATSConnection{Stream: v1alpha1.StreamName(stream)}
	if user != "" {
		n.CredentialsSecretRef = &v1alpha1.SecretReference{Name: user}
	}
	return n
}

// secretOf gives the Secret "user" the user's name and password; "user@2" is the same user with another password, and
// "token" a token.
func secretOf(_, name string) map[string]string {
	if name == "token" {
		return map[string]string{v1alpha1.KeyNATSToken: "pw-token"}
	}
	user, _, _ := strings.Cut(name, "@")
	return map[string]string{"username": user, "password": "pw-" + name}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	owner := &local.Login{Name: "owner", Password: "pw-owner"}
	logins := func(names ...string) []local.Login {
		var all []local.Login
		for _, n := range names {
			all = append(all, local.Login{Name: n, Password: "pw-" + n})
		}
		return all
	}
	cases := map[string]struct {
		relays    []v1alpha1.OutboxRelay
		consumers []v1alpha1.InboxConsumer
		want      *plan
		wantErr   string
	}{
		"what a relay and a consumer name is made": {
			relays: []v1alpha1.OutboxRelay{
				relayOf("orders", "a", "relay", "owner", "n1", "ORDERS", "orders.events"),
			},
			consumers: []v1alpha1.InboxConsumer{
				consumerOf("billing", "b", "bill", "", "n2", "ORDERS", "orders.events"),
			},
			want: &plan{
				databases: []database{{name: "billing", user: "bill"}, {name: "orders", owner: owner, user: "owner"}},
				logins:    logins("bill", "owner", "relay"),
				users:     []local.NATSUser{{Name: "n1", Password: "pw-n1"}, {Name: "n2", Password: "pw-n2"}},
				streams:   []stream{{"ORDERS", []string{"orders.events"}}},
			},
		},
		"topics of a relay and a consumer are made, and a pattern is not": {
			relays:    []v1alpha1.OutboxRelay{kafkaRelayOf("k1", "orders.events", "orders.eu", "orders.*")},
			consumers: []v1alpha1.InboxConsumer{kafkaConsumerOf("k2", "refunds", "orders.events")},
			want: &plan{
				databases:  []database{{name: "orders", user: "relay"}},
				logins:     logins("relay"),
				topics:     []string{"orders.eu", "orders.events", "refunds"},
				kafkaUsers: []local.KafkaUser{{Name: "k1", Password: "pw-k1"}, {Name: "k2", Password: "pw-k2"}},
				notices: []string{
					"topics of the patterns orders.* are not made: a pattern does not say which there are",
				},
			},
		},
		"nobody logs in to Kafka where one resource does not": {
			relays:    []v1alpha1.OutboxRelay{kafkaRelayOf("k1", "orders")},
			consumers: []v1alpha1.InboxConsumer{kafkaConsumerOf("", "orders")},
			want: &plan{
				databases: []database{{name: "orders", user: "relay"}},
				logins:    logins("relay"),
				topics:    []string{"orders"},
			},
		},
		"one database on two hosts is one here, and that is said": {
			relays: []v1alpha1.OutboxRelay{
				relayOf("orders", "a", "relay", "", "n", "S", "s"), relayOf("orders", "b", "relay", "", "n", "S", "s"),
			},
			want: &plan{
				databases: []database{{name: "orders", user: "relay"}},
				logins:    logins("relay"),
				users:     []local.NATSUser{{Name: "n", Password: "pw-n"}},
				streams:   []stream{{"S", []string{"s"}}},
				notices:   []string{"database orders is named on a, b: here it is one database"},
			},
		},
		"one user with two passwords cannot be": {
			relays:    []v1alpha1.OutboxRelay{relayOf("orders", "a", "app", "", "n", "S", "s")},
			consumers: []v1alpha1.InboxConsumer{consumerOf("billing", "b", "app@2", "", "n", "S", "s")},
			wantErr: `inboxconsumer/consumer: the Secrets shop/app and shop/app@2 give the user "app" different passwords, ` +
				`and one embedded server stands in for all hosts: use one password, or run against the real hosts with --external`,
		},
		"nor can one of NATS": {
			relays:    []v1alpha1.OutboxRelay{relayOf("orders", "a", "app", "", "n", "S", "s")},
			consumers: []v1alpha1.InboxConsumer{consumerOf("billing", "b", "app", "", "n@2", "S", "s")},
			wantErr:   `the Secrets shop/n and shop/n@2 give the user "n" different passwords`,
		},
		"a user of both servers may have one for each": {
			relays: []v1alpha1.OutboxRelay{relayOf("orders", "a", "app", "", "app@2", "S", "s")},
			want: &plan{
				databases: []database{{name: "orders", user: "app"}},
				logins:    logins("app"),
				users:     []local.NATSUser{{Name: "app", Password: "pw-app@2"}},
				streams:   []stream{{"S", []string{"s"}}},
			},
		},
		"a database has one migration user": {
			relays:    []v1alpha1.OutboxRelay{relayOf("shop", "a", "relay", "owner1", "n", "S", "s")},
			consumers: []v1alpha1.InboxConsumer{consumerOf("shop", "a", "bill", "owner2", "n", "S", "s")},
			wantErr:   `database "shop" has two migration users, "owner1" and "owner2"`,
		},
		"nobody logs in to NATS where one resource does not": {
			relays:    []v1alpha1.OutboxRelay{relayOf("orders", "a", "relay", "", "n", "S", "s")},
			consumers: []v1alpha1.InboxConsumer{consumerOf("orders", "a", "relay", "", "", "S", "s")},
			want: &plan{
				databases: []database{{name: "orders", user: "relay"}},
				logins:    logins("relay"),
				streams:   []stream{{"S", []string{"s"}}},
			},
		},
		"the embedded NATS knows users alone": {
			relays:  []v1alpha1.OutboxRelay{relayOf("orders", "a", "relay", "", "token", "S", "s")},
			wantErr: "the Secret shop/token has no username: the embedded NATS knows username and password alone",
		},
		"a stream takes all that is sent to it or read from it, overlaps once": {
			relays: []v1alpha1.OutboxRelay{
				relayOf("orders", "a", "relay", "", "", "S", "orders.events", "orders.eu-*", "audit.all"),
				relayOf("orders", "a", "relay", "", "", "S", "orders.a.b"),
			},
			consumers: []v1alpha1.InboxConsumer{
				consumerOf("orders", "a", "relay", "", "", "S", "orders.*", "audit.>"),
				consumerOf("orders", "a", "relay", "", "", "T"),
			},
			want: &plan{
				databases: []database{{name: "orders", user: "relay"}},
				logins:    logins("relay"),
				streams:   []stream{{"S", []string{"audit.>", "orders.*", "orders.a.b"}}, {"T", []string{"T.>"}}},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newPlan(tc.relays, tc.consumers, secretOf)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error = %v, want %q", err, tc.wantErr)
				}
				if strings.Contains(err.Error(), "pw-") {
					t.Errorf("a password was printed: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(plan{}, database{}, stream{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSubjectsOfAStreamOverlapNowhere(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ subjects, want []string }{
		"one that another covers goes":        {[]string{"a.b", "a.*", "a.b"}, []string{"a.*"}},
		"all under a word":                    {[]string{"a.b.c", "a.>", "a.x"}, []string{"a.>"}},
		"the word itself is not under it":     {[]string{"a", "a.>"}, []string{"a", "a.>"}},
		"different lengths are apart":         {[]string{"a.*", "a.b.c"}, []string{"a.*", "a.b.c"}},
		"two that overlap in part are joined": {[]string{"a.*", "*.b"}, []string{"*.*"}},
		"a join that overlaps a third":        {[]string{"c.d", "a.*", "*.b"}, []string{"*.*"}},
		"an open end and a wildcard":          {[]string{"a.b.>", "*.b.c"}, []string{"*.b.>"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, covering(tc.subjects, "S")); diff != "" {
				t.Errorf("covering (-want +got):\n%s", diff)
			}
		})
	}
}
