package up

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/local"
)

// plan is what one embedded PostgreSQL, one embedded NATS and one stand-in for Kafka need to stand in for every host that
// the resources name.
// It is a pure function of the resources.
type plan struct {
	databases []database
	logins    []local.Login // of PostgreSQL
	users     []local.NATSUser
	streams   []stream
	topics    []string
	// kafkaUsers may log in to Kafka; none means that nobody has to.
	kafkaUsers []local.KafkaUser
	// notices tell in which way the stand-ins differ from the real hosts.
	notices []string
}

// database is one that a resource names.
type database struct {
	name string
	// owner may change tables; nil where no resource names one.
	owner *local.Login
	// user is one that may log in and use the database: the owner where there is one.
	user string
}

// stream is one that a resource names, with every subject that a relay may publish to it.
type stream struct {
	name     string
	subjects []string
}

// secretFunc returns the values of a Secret. Whether it is there was checked when the resources were read.
type secretFunc func(namespace, name string) map[string]string

func (p *plan) databaseNames() []string {
	names := make([]string, len(p.databases))
	for i := range p.databases {
		names[i] = p.databases[i].name
	}
	return names
}

type planner struct {
	secret    secretFunc
	databases map[string]*database
	hosts     map[string][]string // database → hosts that name it
	logins    map[string]origin
	users     map[string]origin
	anonymous bool
	streams   map[string][]string
	kafka     kafkaPlan
}

// kafkaPlan is what the resources name of Kafka.
type kafkaPlan struct {
	users     map[string]origin
	anonymous bool
	topics    map[string]bool
	patterns  map[string]bool // of allowed topics, which nobody can make
}

// origin is a password and the Secret that holds it.
type origin struct{ password, secret string }

// newPlan reads the resources.
func newPlan(relays []v1alpha1.OutboxRelay, consumers []v1alpha1.InboxConsumer, secret secretFunc) (*plan, error) {
	p := &planner{
		secret: secret, databases: map[string]*database{}, hosts: map[string][]string{},
		logins: map[string]origin{}, users: map[string]origin{}, streams: map[string][]string{},
		kafka: kafkaPlan{users: map[string]origin{}, topics: map[string]bool{}, patterns: map[string]bool{}},
	}
	for i := range relays {
		if err := p.relay(&relays[i]); err != nil {
			return nil, fmt.Errorf("outboxrelay/%s: %w", relays[i].Name, err)
		}
	}
	for i := range consumers {
		if err := p.consumer(&consumers[i]); err != nil {
			return nil, fmt.Errorf("inboxconsumer/%s: %w", consumers[i].Name, err)
		}
	}
	return p.plan(), nil
}

// errNotEmbedded says that no server of this machine can stand in for a broker.
var errNotEmbedded = errors.New("nothing stands in for RabbitMQ: " +
	"run with --external to use the servers that the resources name")

func (p *planner) relay(r *v1alpha1.OutboxRelay) error {
	o := &r.Spec.Outbox
	if err := p.postgres(r.Namespace, &r.Spec.Source.Postgres, o.MigrationCredentialsSecretRef); err != nil {
		return err
	}
	allowed := r.Spec.Destination.Allowed
	if k := r.Spec.Destination.Kafka; k != nil {
		for _, pattern := range allowed {
			p.topic(string(pattern))
		}
		p.topic(string(k.Topic))
		return p.cluster(r.Namespace, &k.KafkaConnection)
	}
	d := r.Spec.Destination.NATS
	if d == nil {
		return errNotEmbedded
	}
	if err := p.nats(r.Namespace, &d.NATSConnection); err != nil {
		return err
	}
	subjects := []string{string(d.Subject)}
	for _, pattern := range allowed {
		subjects = append(subjects, asSubject(string(pattern)))
	}
	p.streams[string(d.Stream)] = append(p.streams[string(d.Stream)], subjects...)
	return nil
}

func (p *planner) consumer(c *v1alpha1.InboxConsumer) error {
	i := &c.Spec.Inbox
	if err := p.postgres(c.Namespace, &i.Postgres, i.MigrationCredentialsSecretRef); err != nil {
		return err
	}
	if k := c.Spec.Source.Kafka; k != nil {
		for _, topic := range k.Topics {
			p.topic(string(topic))
		}
		return p.cluster(c.Namespace, &k.KafkaConnection)
	}
	s := c.Spec.Source.NATS
	if s == nil {
		return errNotEmbedded
	}
	if err := p.nats(c.Namespace, &s.NATSConnection); err != nil {
		return err
	}
	name := string(s.Stream)
	if _, published := p.streams[name]; !published {
		p.streams[name] = nil
	}
	for _, subject := range s.FilterSubjects {
		p.streams[name] = append(p.streams[name], string(subject))
	}
	return nil
}

func (p *planner) postgres(namespace string, pg *v1alpha1.Postgres, owner *v1alpha1.SecretReference) error {
	worker, err := p.login(namespace, pg.CredentialsSecretRef.Name)
	if err != nil {
		return err
	}
	name := pg.Database
	d := p.databases[name]
	if d == nil {
		d = &database{name: name, user: worker.Name}
		p.databases[name] = d
	}
	for _, host := range pg.Hosts {
		if !slices.Contains(p.hosts[name], string(host)) {
			p.hosts[name] = append(p.hosts[name], string(host))
		}
	}
	if owner == nil {
		return nil
	}
	l, err := p.login(namespace, owner.Name)
	if err != nil {
		return err
	}
	if d.owner != nil && d.owner.Name != l.Name {
		return fmt.Errorf("database %q has two migration users, %q and %q, and the embedded PostgreSQL can give it to "+
			"one only: use the same one, or run against the real hosts with --external", name, d.owner.Name, l.Name)
	}
	d.owner, d.user = &l, l.Name
	return nil
}

func (p *planner) login(namespace, secret string) (local.Login, error) {
	values := p.secret(namespace, secret)
	l := local.Login{Name: values["username"], Password: values["password"]}
	if err := once(p.logins, l.Name, l.Password, namespace+"/"+secret); err != nil {
		return local.Login{}, err
	}
	return l, nil
}

func (p *planner) nats(namespace string, n *v1alpha1.NATSConnection) error {
	if n.CredentialsSecretRef == nil {
		p.anonymous = true
		return nil
	}
	name := n.CredentialsSecretRef.Name
	values := p.secret(namespace, name)
	if values[v1alpha1.KeyUsername] == "" {
		return fmt.Errorf("the Secret %s/%s has no %s: the embedded NATS knows %s and %s alone; use those, or run "+
			"against the real hosts with --external", namespace, name, v1alpha1.KeyUsername, v1alpha1.KeyUsername,
			v1alpha1.KeyPassword)
	}
	return once(p.users, values["username"], values["password"], namespace+"/"+name)
}

func (p *planner) cluster(namespace string, k *v1alpha1.KafkaConnection) error {
	if k.SASL == nil {
		p.kafka.anonymous = true
		return nil
	}
	name := k.SASL.CredentialsSecretRef.Name
	values := p.secret(namespace, name)
	return once(p.kafka.users, values["username"], values["password"], namespace+"/"+name)
}

// topic notes a topic, or a pattern of some.
func (p *planner) topic(name string) {
	if strings.ContainsAny(name, "*>") {
		p.kafka.patterns[name] = true
		return
	}
	p.kafka.topics[name] = true
}

// once notes a user's password and refuses a second one: on one embedded server a user has one password.
func once(known map[string]origin, user, password, secret string) error {
	if o, ok := known[user]; ok && o.password != password {
		return fmt.Errorf(
			"the Secrets %s and %s give the user %q different passwords, and one embedded server stands in "+
				"for all hosts: use one password, or run against the real hosts with --external",
			o.secret,
			secret,
			user,
		)
	}
	known[user] = origin{password: password, secret: secret}
	return nil
}

func (p *planner) plan() *plan {
	out := &plan{}
	for _, name := range slices.Sorted(maps.Keys(p.databases)) {
		out.databases = append(out.databases, *p.databases[name])
		if hosts := p.hosts[name]; len(hosts) > 1 {
			out.notices = append(out.notices, fmt.Sprintf(
				"database %s is named on %s: here it is one database", name, strings.Join(hosts, ", ")))
		}
	}
	for _, user := range slices.Sorted(maps.Keys(p.logins)) {
		out.logins = append(out.logins, local.Login{Name: user, Password: p.logins[user].password})
	}
	if !p.anonymous { // a server with users refuses a resource that names none
		for _, user := range slices.Sorted(maps.Keys(p.users)) {
			out.users = append(out.users, local.NATSUser{Name: user, Password: p.users[user].password})
		}
	}
	out.topics = slices.Sorted(maps.Keys(p.kafka.topics))
	if !p.kafka.anonymous {
		for _, user := range slices.Sorted(maps.Keys(p.kafka.users)) {
			out.kafkaUsers = append(out.kafkaUsers, local.KafkaUser{Name: user, Password: p.kafka.users[user].password})
		}
	}
	if patterns := slices.Sorted(maps.Keys(p.kafka.patterns)); len(patterns) > 0 {
		out.notices = append(out.notices, "topics of the patterns "+strings.Join(patterns, ", ")+
			" are not made: a pattern does not say which there are")
	}
	for _, name := range slices.Sorted(maps.Keys(p.streams)) {
		out.streams = append(out.streams, stream{name: name, subjects: covering(p.streams[name], name)})
	}
	return out
}

// asSubject widens an allowed pattern to a subject that a stream can list: there a token is whole or a wildcard.
func asSubject(pattern string) string {
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		if strings.Contains(t, "*") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// covering returns subjects that cover all and overlap nowhere, since a stream refuses overlaps. A stream that nobody
// names a subject of takes those under its own name.
func covering(subjects []string, name string) []string {
	if len(subjects) == 0 {
		return []string{name + ".>"}
	}
	var out []string
	for _, s := range subjects {
		for {
			i := slices.IndexFunc(out, func(other string) bool { return overlap(other, s) })
			if i < 0 {
				break
			}
			s = join(out[i], s) // which may overlap others now
			out = slices.Delete(out, i, i+1)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// overlap says whether there is a subject that both stand for.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}

// join returns the narrowest subject that stands for all that two overlapping ones do.
func join(a, b string) string {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	var out []string
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == bs[i]:
			out = append(out, as[i])
		case as[i] == ">" || bs[i] == ">":
			return strings.Join(append(out, ">"), ".")
		default:
			out = append(out, "*")
		}
	}
	return strings.Join(out, ".")
}
