package pipeline_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

// telling has the outbox tell of commits, and the relay look by itself once a minute.
func (o *orders) telling() config.Relay {
	o.cfg.Batch.WakeUp, o.cfg.Batch.PollInterval = config.WakeUpNotify, config.Duration(time.Minute)
	return o.cfg
}

func (o *orders) addTrigger() {
	o.t.Helper()
	names := postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"}
	options := schema.Options{Components: []schema.Component{schema.Outbox}, Shards: 4, Notify: true}
	if err := schema.Apply(o.t.Context(), o.db.Pool(), names, options); err != nil {
		o.t.Fatal(err)
	}
}

// With batch.wakeUp: Notify an idle relay does not wait for its next look; where the trigger is missing it says so, and
// works all the same.
func TestARelayIsToldOfCommits(t *testing.T) {
	t.Parallel()
	o := newOrders(t, testkit.OwnDatabase(nil))
	relay, life := o.start(o.telling())
	life.becomes("NotifyUnavailable", "True TriggerMissing")
	life.becomes("SchemaReady", "True SchemaCurrent")
	o.write(1) // reaches a lane that still reads, or else waits for the next look
	faster := o.cfg
	faster.Batch.PollInterval = config.Duration(20 * time.Millisecond)
	if err := relay.Reconfigure(faster); err != nil {
		t.Fatal(err)
	}
	o.published(1)

	o.addTrigger()
	life.becomes("NotifyUnavailable", "")
	if err := relay.Reconfigure(o.cfg); err != nil { // once a minute again
		t.Fatal(err)
	}
	for i := range 10 {
		o.write(1)
		o.published(i + 2)
	}
}

func TestARelayBehindAPoolerSaysThatItIsNotTold(t *testing.T) {
	t.Parallel()
	o := newOrders(t)
	o.addTrigger()
	role := o.db.Ordinary()
	names := postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"}
	for _, grant := range (schema.Options{Components: []schema.Component{schema.Outbox}}).Grants(names, schema.RoleRelay, role.User) {
		o.db.Exec(grant)
	}
	pooler := testkit.PgBouncer(t, brokers.PgBouncerConfig{
		Host: o.db.Host, Port: o.db.Port, Users: map[string]string{role.User: role.Password}, PoolSize: 8,
	})
	cfg := o.telling()
	cfg.Source = role.Config()
	cfg.Source.Port = int32(pooler.Port())
	cfg.Batch.PollInterval = config.Duration(20 * time.Millisecond)
	_, life := o.start(cfg)
	life.becomes("NotifyUnavailable", "True NotDelivered")
	o.write(3)
	o.published(3)
}
