package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/mount"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/relay"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/tracing"
)

const (
	// maxQueryTimeout bounds one transaction of the outbox. A short lease has less: a statement that hangs must leave
	// time to renew the lease over another connection.
	maxQueryTimeout = 10 * time.Second
	// relayDrainTimeout bounds finishing and releasing, below what a process is given.
	relayDrainTimeout = 20 * time.Second
)

// Relay is a running relay, built from its config.
type Relay struct{ *supervisor[config.Relay] }

// NewRelay returns a relay that is ready to Run. It dials nothing, and fails only where the config contradicts itself.
func NewRelay(cfg config.Relay, o Options) (*Relay, error) {
	o = o.complete()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	own := process{holder: uuid.New(), metrics: relay.NewMetrics(o.Registry), clock: &relay.Clock{}}
	build := func(ctx context.Context, cfg config.Relay) (part[config.Relay], error) {
		p, err := newRelayPart(ctx, cfg, own, o)
		if err != nil {
			return nil, err // not the typed nil of p
		}
		return p, nil
	}
	return &Relay{newSupervisor(cfg, kind[config.Relay]{
		build:    build,
		blank:    func(cfg config.Relay) statusz.Report { return blankRelay(cfg, own.holder.String()) },
		fixed:    func(old, next config.Relay) error { return fixedResource(old.Resource, next.Resource) },
		resource: func(cfg config.Relay) config.Resource { return cfg.Resource },
	}, o)}, nil
}

// process is what a process keeps from one relay to the next.
type process struct {
	holder  uuid.UUID
	metrics *relay.Metrics
	clock   *relay.Clock
}

// blankRelay is the report of a relay of which nothing is known.
func blankRelay(cfg config.Relay, worker string) statusz.Report {
	r := statusz.Report{
		Version: statusz.Version, Worker: worker, Namespace: cfg.Resource.Namespace, Name: cfg.Resource.Name,
		Generation: cfg.Resource.Generation, RunPolicy: cfg.RunPolicy,
		Conditions: []statusz.Condition{
			condition(databaseReachable, statusUnknown, reasonStarting, ""),
			condition(schemaReady, statusUnknown, reasonStarting, ""),
			condition(brokerReachable, statusUnknown, reasonStarting, ""),
		},
	}
	insecure(&r, cfg.Source, destinationTLS(cfg))
	return r
}

// relayConfig is what the loop wants to know.
func relayConfig(cfg config.Relay, holder [16]byte) relay.Config {
	system, destination, unit := target(cfg)
	return relay.Config{
		Holder: holder, Shards: int(cfg.Outbox.Shards),
		Broker: system, Destination: destination, Unit: unit,
		Unordered:     cfg.Ordering == config.OrderingNone,
		NoDeadLetters: cfg.Outbox.Columns != nil && cfg.Outbox.Columns.Values.Failed == "",
		LeaseDuration: cfg.Lease.D(), LeaseMargin: config.LeaseMargin,
		QueryTimeout: queryTimeout(cfg), DrainTimeout: relayDrainTimeout,
		Retention: cfg.Outbox.PublishedRetention.D(), RunPolicy: relay.RunPolicy(cfg.RunPolicy),
		Batch: relay.Batch{
			MaxMessages: int(cfg.Batch.MaxMessages), MaxBytes: cfg.Batch.MaxBytes,
			PollInterval: cfg.Batch.PollInterval.D(), PublishTimeout: cfg.Batch.PublishTimeout.D(),
		},
		Backoff: retry.Backoff{Initial: cfg.Backoff.Initial.D(), Max: cfg.Backoff.Max.D()},
		Budget:  retry.Budget{MaxAttempts: int(cfg.Budget.MaxAttempts), MaxElapsed: cfg.Budget.MaxElapsed.D()},
		Share: retry.Share{
			Percent: int(cfg.Budget.RetryPercent), MinPerSecond: int(cfg.Budget.MinRetriesPerSecond),
		},
	}
}

func queryTimeout(cfg config.Relay) time.Duration { return min(maxQueryTimeout, cfg.Lease.D()/2) }

// relayPart is a relay with its connections.
type relayPart struct {
	cfg         config.Relay
	holder      [16]byte
	pool        *postgres.Pool
	destination destination
	secrets     *mount.Follower
	renewed     chan struct{}
	loop        *relay.Relay
	target      lookout
	later       *outlook
	commits     *listening // nil: batch.wakeUp is Poll
	log         *slog.Logger
	within      bound
}

func newRelayPart(
	ctx context.Context, cfg config.Relay, own process, o Options,
) (_ *relayPart, err error) {
	p := &relayPart{
		cfg: cfg, holder: own.holder, renewed: make(chan struct{}), log: o.Log, within: outliving(ctx),
	}
	defer func() {
		if err != nil {
			p.Close(ctx)
		}
	}()
	name := "relay " + cfg.Resource.String()
	if p.pool, err = openPool(ctx, cfg.Source, name, cfg.Outbox.Columns == nil, o); err != nil {
		return nil, err
	}
	names := postgres.Names{Schema: cfg.Source.Schema, Outbox: cfg.Outbox.Table}
	needed := outboxOptions(cfg)
	needed.Notify = false // nothing depends on it: p.commits tells where it is not there
	if err = schema.Verify(ctx, p.pool, names, schema.Expected{Options: needed, Role: schema.RoleRelay}); err != nil {
		return nil, databaseTrouble(err)
	}
	table, err := teamTable(ctx, p.pool, names, cfg)
	if err != nil {
		return nil, err
	}
	store, err := outboxdb.New(p.pool, outboxdb.Config{
		Names: names, Columns: table, Relay: cfg.Resource.String(), RelayUID: cfg.Resource.UID,
		Holder: own.holder,
		Shards: int(cfg.Outbox.Shards), Unordered: cfg.Ordering == config.OrderingNone, QueryTimeout: queryTimeout(cfg),
		SkipDeadLetters: cfg.OnDeadLetter == config.SkipMessage,
	})
	if err != nil {
		return nil, fmt.Errorf("make the store: %w", err)
	}
	p.secrets = mount.NewFollower(cfg.BrokerSecretPaths(), p.prove, p.refused) // before there is a connection
	if p.destination, err = openDestination(ctx, cfg, name, o.Log); err != nil {
		return nil, err
	}
	p.later = newOutlook(p.pool, names.SQL("{outbox}"), cfg.Source, destinationTLS(cfg))
	if cfg.Batch.WakeUp == config.WakeUpNotify {
		p.commits = newListening(p.pool, names, cfg.Outbox.Columns != nil, o.Random)
	}
	system, _, _ := target(cfg)
	publish := tracing.Publisher(p.destination, o.Tracer, system, fallback(cfg))
	p.loop, err = relay.New(relayConfig(cfg, own.holder), store, publish, own.metrics, own.clock, o.Log, o.Steps)
	return p, err
}

// Run implements part.
func (p *relayPart) Run(ctx context.Context) error {
	looking, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop() // before Wait
	beside.Go(func() { p.target.follow(looking, p.log, p.destination.Check) })
	beside.Go(func() { p.later.follow(looking, p.log) })
	if p.commits != nil {
		beside.Go(func() { p.commits.follow(looking, p.log, p.loop.Committed) })
	}
	beside.Go(func() {
		if p.secrets.Next(looking) == nil {
			close(p.renewed)
		}
	})
	return p.loop.Run(ctx)
}

// Renewed implements part.
func (p *relayPart) Renewed() <-chan struct{} { return p.renewed }

// prove makes a connection of its own to the broker, with what the files hold now.
func (p *relayPart) prove(ctx context.Context) error {
	d, err := openDestination(ctx, p.cfg, "relay "+p.cfg.Resource.String()+" (new credentials)", p.log)
	if err != nil {
		return err
	}
	defer closeSoon(ctx, p.log, d.Close)
	_, err = d.Check(ctx)
	return err //nolint:wrapcheck // a *broker.Error, which says all
}

func (p *relayPart) refused(ctx context.Context, err error) {
	p.log.WarnContext(ctx, "New credentials of the broker do not work, open connections are kept", "err", err)
}

// Reconfigure implements part.
func (p *relayPart) Reconfigure(cfg config.Relay) bool {
	same := reflect.DeepEqual(p.cfg.Source, cfg.Source) && reflect.DeepEqual(p.cfg.Outbox, cfg.Outbox) &&
		reflect.DeepEqual(p.cfg.NATS, cfg.NATS) && reflect.DeepEqual(p.cfg.Kafka, cfg.Kafka) &&
		reflect.DeepEqual(p.cfg.RabbitMQ, cfg.RabbitMQ) && reflect.DeepEqual(p.cfg.Allowed, cfg.Allowed) &&
		p.cfg.MessageFormat == cfg.MessageFormat && p.cfg.Ordering == cfg.Ordering &&
		p.cfg.OnDeadLetter == cfg.OnDeadLetter && p.cfg.Lease == cfg.Lease && p.cfg.Batch.WakeUp == cfg.Batch.WakeUp
	return same && p.loop.Reconfigure(relayConfig(cfg, p.holder)) == nil
}

// Refresh implements part.
func (p *relayPart) Refresh() { p.loop.Refresh() }

// Report implements part.
func (p *relayPart) Report(ctx context.Context, r *statusz.Report) {
	seen, conditions := p.loop.Report(ctx)
	r.Relay, r.ObservedTime = &seen, p.loop.ObservedTime()
	for _, c := range conditions {
		if c.Type == brokerReachable && c.Status != statusFalse {
			// What was published proves less than a look at the broker now, and an idle relay publishes nothing.
			c = p.target.condition(brokerReachable, c)
		}
		adopt(r, c)
	}
	others := p.later.conditions()
	if p.commits != nil {
		others = append(others, p.commits.conditions()...)
	}
	warn(r, p.target.warnings(), others)
}

// Kill implements part.
func (p *relayPart) Kill() {
	p.loop.Crash()
	cut(p.within, p.destination.Close)
}

// Close implements part.
func (p *relayPart) Close(ctx context.Context) {
	if p.destination != nil {
		closeSoon(ctx, p.log, p.destination.Close)
	}
	if p.pool != nil {
		p.pool.Close()
	}
}
