package up

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/local"
)

// planned computes what the embedded servers need.
func (r *runner) planned() (*plan, error) {
	relays := make([]v1alpha1.OutboxRelay, len(r.relays))
	for i := range r.relays {
		relays[i] = r.relays[i].resource
	}
	consumers := make([]v1alpha1.InboxConsumer, len(r.inboxes))
	for i := range r.inboxes {
		consumers[i] = r.inboxes[i].resource
	}
	p, err := newPlan(relays, consumers, r.secretValues)
	if err != nil {
		return nil, &InputError{err}
	}
	for _, init := range r.cfg.Init {
		if !slices.Contains(p.databaseNames(), init.Database) {
			return nil, &InputError{fmt.Errorf("--init %s=%s: no resource names a database %s: choose from %s",
				init.Database, init.File, init.Database, strings.Join(p.databaseNames(), ", "))}
		}
	}
	return p, nil
}

// secretValues reads a Secret's username and password.
func (r *runner) secretValues(namespace, name string) map[string]string {
	values := map[string]string{}
	for i := range r.cfg.Set.Secrets {
		s := &r.cfg.Set.Secrets[i]
		if s.Namespace != namespace || s.Name != name {
			continue
		}
		for _, key := range []string{v1alpha1.KeyUsername, v1alpha1.KeyPassword} {
			values[key] = string(s.Data[key].Reveal())
		}
	}
	return values
}

// embed starts the stand-ins, makes in them what the resources name, and points the workers at them.
func (r *runner) embed(ctx context.Context, p *plan) error {
	s := &servers{}
	r.servers = s
	r.screen.say("starting an embedded " + p.servers() + " (the first start on a machine fetches PostgreSQL)")
	if err := s.start(ctx, &r.cfg, p); err != nil {
		return err
	}
	for _, d := range p.databases {
		if err := s.postgres.EnsureDatabase(ctx, local.Database{Name: d.name, Owner: d.owner}); err != nil {
			return err
		}
	}
	for _, l := range p.logins {
		if err := s.postgres.EnsureLogin(ctx, l); err != nil {
			return err
		}
	}
	e := s.endpoints()
	if err := e.ensureStreams(ctx, p); err != nil {
		return err
	}
	if err := r.pointAt(e); err != nil {
		return err
	}
	if err := r.prepareEmbedded(ctx); err != nil {
		return err
	}
	if err := r.announce(p, e); err != nil {
		return err
	}
	if s.data == "" {
		return nil
	}
	return e.Write(s.data)
}

func (r *runner) pointAt(e Endpoints) error {
	for i := range r.relays {
		if err := e.Database(&r.relays[i].cfg.Source); err != nil {
			return err
		}
		e.Broker(r.relays[i].cfg.NATS)
		e.Cluster(r.relays[i].cfg.Kafka)
	}
	for i := range r.inboxes {
		if err := e.Database(&r.inboxes[i].cfg.Inbox.Postgres); err != nil {
			return err
		}
		e.Broker(r.inboxes[i].cfg.NATS)
		e.Cluster(r.inboxes[i].cfg.Kafka)
	}
	return nil
}

// ensureStreams makes the streams that the resources name, as durable as one server can.
func (e Endpoints) ensureStreams(ctx context.Context, p *plan) error {
	if len(p.streams) == 0 {
		return nil
	}
	var opts []nats.Option
	if len(p.users) > 0 {
		opts = append(opts, nats.UserInfo(p.users[0].Name, p.users[0].Password))
	}
	nc, err := nats.Connect(e.NATS, opts...)
	if err != nil {
		return fmt.Errorf("connect to the embedded NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use JetStream of the embedded NATS: %w", err)
	}
	for _, st := range p.streams {
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: st.name, Subjects: st.subjects, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
			Discard: jetstream.DiscardNew,
		})
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
			return fmt.Errorf("make stream %s with subjects %s in the embedded NATS: %s",
				st.name, strings.Join(st.subjects, ", "), refused.Description)
		}
		if err != nil {
			return fmt.Errorf("make stream %s in the embedded NATS: %w", st.name, err)
		}
	}
	return nil
}

// announce says what stands in for what, and how to get to it.
func (r *runner) announce(p *plan, e Endpoints) error {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"%s of this machine stand in for every host that the resources name. TLS is not used on "+
			"them, and\neach keeps one copy of its data. Users and passwords are those of the Secrets.\n",
		p.servers(),
	)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, d := range p.databases {
		address := url.URL{Scheme: "postgres", User: url.User(d.user), Host: e.Postgres, Path: "/" + d.name}
		fmt.Fprintf(t, "  database\t%s\t%s\n", d.name, address.String())
	}
	for _, st := range p.streams {
		address := url.URL{Scheme: "nats", Host: e.NATS}
		if len(p.users) > 0 {
			address.User = url.User(p.users[0].Name)
		}
		fmt.Fprintf(t, "  stream\t%s\t%s\tsubjects %s\n", st.name, address.String(), strings.Join(st.subjects, ", "))
	}
	for _, topic := range p.topics {
		fmt.Fprintf(t, "  topic\t%s\t%s\n", topic, e.Kafka)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("say what runs: %w", err)
	}
	for _, notice := range p.notices {
		b.WriteString(notice + "\n")
	}
	b.WriteString("Ctrl-C drains and ends.")
	r.screen.say(b.String())
	return r.screen.err
}
