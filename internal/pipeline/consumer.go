package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/consumer"
	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/inboxdb"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/tracing"
	"github.com/postrider/postrider/internal/verdict"
)

// Consumer is a running consumer, built from its config.
type Consumer struct{ *supervisor[config.Consumer] }

// NewConsumer returns a consumer that is ready to Run. It dials nothing, and fails only where the config contradicts
// itself.
func NewConsumer(cfg config.Consumer, o Options) (*Consumer, error) {
	o = o.complete()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, err := newHandler(cfg); err != nil {
		return nil, err
	}
	metrics, err := consumer.NewMetrics(o.Registry)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	worker := newWorkerID()
	build := func(ctx context.Context, cfg config.Consumer) (part[config.Consumer], error) {
		p, err := newConsumerPart(ctx, cfg, metrics, o)
		if err != nil {
			return nil, err // not the typed nil of p
		}
		return p, nil
	}
	return &Consumer{newSupervisor(cfg, kind[config.Consumer]{
		build:    build,
		blank:    func(cfg config.Consumer) statusz.Report { return blankConsumer(cfg, worker) },
		fixed:    fixedConsumer,
		resource: func(cfg config.Consumer) config.Resource { return cfg.Resource },
	}, o)}, nil
}

// blankConsumer is the report of a consumer of which nothing is known.
func blankConsumer(cfg config.Consumer, worker string) statusz.Report {
	r := statusz.Report{
		Version: statusz.Version, Worker: worker, Namespace: cfg.Resource.Namespace, Name: cfg.Resource.Name,
		Generation: cfg.Resource.Generation, RunPolicy: cfg.RunPolicy,
		Conditions: []statusz.Condition{
			condition(databaseReachable, statusUnknown, reasonStarting, ""),
			condition(schemaReady, statusUnknown, reasonStarting, ""),
			condition(sourceReachable, statusUnknown, reasonStarting, ""),
		},
	}
	insecure(&r, cfg.Inbox.Postgres, sourceTLS(cfg))
	return r
}

// fixedConsumer names what makes it another consumer.
func fixedConsumer(old, next config.Consumer) error {
	if err := fixedResource(old.Resource, next.Resource); err != nil {
		return err
	}
	if old.ConsumerName != next.ConsumerName {
		return errors.New("consumerName: it is the scope of the inbox; a change needs a restart")
	}
	_, err := newHandler(next)
	return err
}

// newHandler parses the statements.
func newHandler(cfg config.Consumer) (*sql.Handler, error) {
	routes := make([]sql.Route, 0, len(cfg.SQL.Routes))
	for _, r := range cfg.SQL.Routes {
		routes = append(routes, sql.Route{EventTypes: r.EventTypes, Statement: r.Statement})
	}
	return sql.New(sql.Config{
		Routes: routes, RefuseUnmatched: cfg.SQL.OnUnmatched == config.UnmatchedDeadLetter,
		MaxDepth: int(cfg.Validation.MaxDepth),
	})
}

// consumerConfig is what the loop wants to know.
func consumerConfig(cfg config.Consumer) consumer.Config {
	system, source, _ := origin(cfg)
	versions := verdict.Off
	switch cfg.Ordering.Versions {
	case config.VersionsEnforce:
		versions = verdict.Enforce
	case config.VersionsIgnoreOlder:
		versions = verdict.IgnoreOlder
	}
	return consumer.Config{
		Name: cfg.ConsumerName, Resource: cfg.Resource.String(), UID: cfg.Resource.UID,
		Broker: system, Source: source,
		RunPolicy: consumer.RunPolicy(cfg.RunPolicy), PerKey: cfg.Ordering.Mode == config.OrderingPerKey,
		Rules: verdict.Rules{
			Versions: versions, GapTimeout: cfg.Ordering.GapTimeout.D(),
			ApplyAfterGap: cfg.Ordering.OnGapTimeout == config.GapApply,
		},
		MaxBytes: cfg.Validation.MaxBytes, Lanes: int(cfg.Concurrency.Lanes),
		MaxBatch: int(cfg.Concurrency.MaxBatchMessages), HandlerTimeout: cfg.Concurrency.HandlerTimeout.D(),
		Backoff:   retry.Backoff{Initial: cfg.Backoff.Initial.D(), Max: cfg.Backoff.Max.D()},
		Retention: cfg.Inbox.Retention.D(), ReplayHorizon: cfg.Inbox.ReplayHorizon.D(),
	}
}

// sameConnections says whether two configs need the same connections, handler and subscription.
func sameConnections(a, b config.Consumer) bool {
	return reflect.DeepEqual(a.Inbox.Postgres, b.Inbox.Postgres) && reflect.DeepEqual(a.NATS, b.NATS) &&
		reflect.DeepEqual(a.Kafka, b.Kafka) && reflect.DeepEqual(a.RabbitMQ, b.RabbitMQ) &&
		reflect.DeepEqual(a.SQL, b.SQL) && a.Validation.MaxDepth == b.Validation.MaxDepth &&
		a.Concurrency.Prefetch == b.Concurrency.Prefetch && a.Ordering.Delivery == b.Ordering.Delivery
}

// consumerPart is a consumer with its connections.
type consumerPart struct {
	cfg    config.Consumer
	pool   *postgres.Pool
	source source
	loop   *consumer.Consumer
	log    *slog.Logger
	seen   lookout
	later  *outlook
	within bound
}

func newConsumerPart(
	ctx context.Context, cfg config.Consumer, metrics *consumer.Metrics, o Options,
) (_ *consumerPart, err error) {
	p := &consumerPart{cfg: cfg, log: o.Log, within: outliving(ctx)}
	defer func() {
		if err != nil {
			p.Close(ctx)
		}
	}()
	handler, err := newHandler(cfg)
	if err != nil {
		return nil, err
	}
	name := "consumer " + cfg.Resource.String()
	if p.pool, err = openPool(ctx, cfg.Inbox.Postgres, name, false, o); err != nil {
		return nil, err
	}
	names := postgres.Names{Schema: cfg.Inbox.Postgres.Schema}
	if err = schema.Verify(ctx, p.pool, names, schema.Expected{
		Options: schema.Options{Components: []schema.Component{schema.Inbox}}, Role: schema.RoleConsumer,
	}); err != nil {
		return nil, databaseTrouble(err)
	}
	tables := inboxdb.New(p.pool.Pool, names, cfg.ConsumerName)
	if p.source, err = openSource(ctx, cfg, name, tables, o.Log); err != nil {
		return nil, err
	}
	p.later = newOutlook(p.pool, names.SQL("{message_inbox}"), cfg.Inbox.Postgres, sourceTLS(cfg))
	system, _, from := origin(cfg)
	p.loop, err = consumer.New(consumerConfig(cfg), consumer.Parts{
		Store: tracing.Store(tables, o.Tracer, system, from), Handler: handler, Receiver: p.source, Metrics: metrics,
		Log: o.Log, Steps: o.Steps, Random: o.Random,
	})
	return p, err
}

// Run implements part.
func (p *consumerPart) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop() // before Wait
	if busy, is := p.source.(interface{ attend(ctx context.Context) }); is {
		beside.Go(func() { busy.attend(ctx) })
	}
	beside.Go(func() { p.seen.follow(ctx, p.log, p.source.Check) })
	beside.Go(func() { p.later.follow(ctx, p.log) })
	return p.loop.Run(ctx)
}

// Reconfigure implements part.
func (p *consumerPart) Reconfigure(cfg config.Consumer) bool {
	if !sameConnections(p.cfg, cfg) {
		return false
	}
	taken, err := p.loop.Reconfigure(consumerConfig(cfg))
	if err != nil || !taken {
		return false
	}
	return true
}

// Renewed implements part. Connections to the broker stay until they end.
func (*consumerPart) Renewed() <-chan struct{} { return nil }

// Refresh implements part. Database and broker read the files at each connect, and both connect again soon.
func (*consumerPart) Refresh() {}

// Report implements part.
func (p *consumerPart) Report(ctx context.Context, r *statusz.Report) {
	seen, conditions := p.loop.Report(ctx)
	r.Consumer = &seen
	for _, c := range conditions {
		// An idle consumer hears nothing for long, and a busy one may hear nothing of a part of its source.
		if c.Type == sourceReachable && c.Status != statusFalse {
			c = p.seen.condition(sourceReachable, c)
		}
		adopt(r, c)
	}
	warn(r, p.seen.warnings(), p.later.conditions())
}

// Kill implements part.
func (p *consumerPart) Kill() {
	p.loop.Kill()
	cut(p.within, p.source.Close)
}

// Close implements part.
func (p *consumerPart) Close(ctx context.Context) {
	if p.source != nil {
		closeSoon(ctx, p.log, p.source.Close)
	}
	if p.pool != nil {
		p.pool.Close()
	}
}
