// Package up runs resources on one machine: the cluster's YAML unchanged, its relays and consumers within this
// process, and one embedded PostgreSQL, NATS and stand-in for Kafka, as far as they are named, in place of every host.
//
// It promises that what runs is what the operator would run: the same schema, rules, defaults and configuration, the
// same loops. Only addresses and TLS differ, and it says so. With External it dials the real hosts and makes nothing
// but the tables of schemaPolicy Managed. It never prints a Secret.
package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/status"
)

const (
	// drainTime bounds the end: publishes and transactions in flight finish within it.
	drainTime = 30 * time.Second
	// tick is how often workers are asked, and so how old the table may be.
	tick = time.Second
)

// Config says what to run and how.
type Config struct {
	// Set holds the resources with their Secrets, loaded without problems.
	Set *manifest.Set
	// External dials the hosts that the resources name instead of embedded servers.
	External bool
	// Data keeps the embedded servers' data and endpoints.json beyond the end. Empty means a temporary folder.
	Data string
	// PostgresPort, NATSPort and KafkaPort are those of the embedded servers; 0 means free ones.
	PostgresPort, NATSPort, KafkaPort int
	// Init are SQL files to run in embedded databases before the workers start, as a service's own migrations do.
	Init []InitSQL
	// DropEvery ends one relay and one consumer as kill -9 would, again and again; 0 means never. DropCount bounds how
	// often; 0 means without end.
	DropEvery time.Duration
	DropCount int
	// Out takes the table or lines. Size is that of a terminal, where the table is redrawn in place; nil elsewhere.
	Out  io.Writer
	Size func() (width, height int)
	// Log takes the workers' logs.
	Log *slog.Logger
}

// InitSQL is a file to run in a database as its owner.
type InitSQL struct{ Database, File string }

// InputError says that what was given cannot be run here. Nothing was started.
type InputError struct{ err error }

// Error implements error.
func (e *InputError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.err }

// runner is one run.
type runner struct {
	cfg     Config
	root    string // of the workers' files
	screen  *screen
	servers *servers
	now     func() time.Time
	started time.Time
	relays  []relayFleet
	inboxes []consumerFleet

	// news are lines that something beside the table has to say; broken is why the run cannot go on.
	news   chan string
	broken chan error
}

type relayFleet struct {
	resource v1alpha1.OutboxRelay
	cfg      config.Relay
	*fleet
}

type consumerFleet struct {
	resource v1alpha1.InboxConsumer
	cfg      config.Consumer
	*fleet
}

// Run brings everything up, shows it until ctx ends, then drains and sums up. The end of ctx is no error.
func Run(ctx context.Context, cfg Config) (err error) {
	r := &runner{
		cfg: cfg, now: time.Now, screen: newScreen(cfg.Out, cfg.Size),
		news: make(chan string), broken: make(chan error),
	}
	r.root, err = os.MkdirTemp("", "postrider-up-")
	if err != nil {
		return fmt.Errorf("make a folder for credentials: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.root)) }()
	if err := r.build(); err != nil {
		return err
	}
	if cfg.External {
		r.screen.say("dialling the hosts that the resources name; Ctrl-C drains and ends")
		return r.work(ctx)
	}
	p, err := r.planned()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.servers.stop(context.WithoutCancel(ctx))) }()
	if err := r.embed(ctx, p); err != nil {
		if ctx.Err() != nil {
			r.screen.say("ended before the workers started")
			return nil
		}
		return err
	}
	return r.work(ctx)
}

// build writes the workers' files and computes their configurations, as the operator would mount them.
func (r *runner) build() error {
	set := r.cfg.Set
	v := view{} // for titles
	for _, relay := range set.Relays {
		v.relays = append(v.relays, *relay.OutboxRelay)
	}
	for _, consumer := range set.Consumers {
		v.consumers = append(v.consumers, *consumer.InboxConsumer)
	}
	for _, relay := range set.Relays {
		in := desired.Inputs{Root: r.rootOf(kindRelay, relay.Namespace, relay.Name)}
		if err := set.WriteFiles(relay.Namespace, desired.RelayReferences(relay.OutboxRelay), in.Root); err != nil {
			return err
		}
		cfg, err := desired.Relay(relay.OutboxRelay, in)
		if err != nil {
			return &InputError{fmt.Errorf("%s: outboxrelay/%s: %w", relay.Origin, relay.Name, err)}
		}
		cfg.StatusTick = config.Duration(tick) // the table is looked at, not written to an API server
		f := &fleet{name: kindRelay + "/" + v.title(relay), log: r.cfg.Log}
		r.relays = append(r.relays, relayFleet{resource: *relay.OutboxRelay, cfg: cfg, fleet: f})
	}
	for _, consumer := range set.Consumers {
		in := desired.Inputs{Root: r.rootOf(kindConsumer, consumer.Namespace, consumer.Name)}
		refs := desired.ConsumerReferences(consumer.InboxConsumer)
		if err := set.WriteFiles(consumer.Namespace, refs, in.Root); err != nil {
			return err
		}
		cfg, err := desired.Consumer(consumer.InboxConsumer, in)
		if err != nil {
			return &InputError{fmt.Errorf("%s: inboxconsumer/%s: %w", consumer.Origin, consumer.Name, err)}
		}
		cfg.StatusTick = config.Duration(tick)
		f := &fleet{name: kindConsumer + "/" + v.title(consumer), log: r.cfg.Log}
		r.inboxes = append(r.inboxes, consumerFleet{resource: *consumer.InboxConsumer, cfg: cfg, fleet: f})
	}
	return nil
}

func (r *runner) rootOf(kind, namespace, name string) string {
	return filepath.Join(r.root, kind, namespace, name)
}

// work runs the workers until ctx ends, then drains them.
func (r *runner) work(ctx context.Context) error {
	r.started = r.now()
	working, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop() // before Wait
	err := r.startWorkers(working)
	if err == nil {
		r.keepServers(working, &beside)
		err = r.show(working)
	}
	ended := context.WithoutCancel(ctx)
	stop()
	err = errors.Join(err, r.screen.keep())
	if err == nil {
		r.screen.say("draining: what is in flight is finished, leases are given back")
	}
	return errors.Join(err, r.drain(ended), r.summary())
}

func (r *runner) startWorkers(ctx context.Context) error {
	for i := range r.relays {
		f := &r.relays[i]
		f.start = func(o pipeline.Options) (worker, error) { return r.newRelay(f, o) }
		if err := f.run(ctx, int(replicasOf(f.resource.Spec.Replicas))); err != nil {
			return err
		}
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		f.start = func(o pipeline.Options) (worker, error) { return r.newConsumer(f, o) }
		if err := f.run(ctx, int(replicasOf(f.resource.Spec.Replicas))); err != nil {
			return err
		}
	}
	return nil
}

// newRelay makes a worker as a Pod is made: with schemaPolicy Managed after a step that makes the tables. In embedded
// databases they are there, but for those beside a table that the team makes.
func (r *runner) newRelay(f *relayFleet, o pipeline.Options) (worker, error) {
	w, err := pipeline.NewRelay(f.cfg, o)
	if err != nil {
		return nil, err
	}
	in := desired.Inputs{Root: r.rootOf(kindRelay, f.resource.Namespace, f.resource.Name)}
	owner, managed := desired.RelayMigration(&f.resource, in)
	there := !r.cfg.External && f.cfg.Outbox.Columns == nil
	if !managed || there {
		return w, nil
	}
	return &staged{step: pipeline.NewRelayMigration(f.cfg, owner.CredentialsDir, o), worker: w}, nil
}

// newConsumer makes a worker as newRelay does.
func (r *runner) newConsumer(f *consumerFleet, o pipeline.Options) (worker, error) {
	w, err := pipeline.NewConsumer(f.cfg, o)
	if err != nil {
		return nil, err
	}
	in := desired.Inputs{Root: r.rootOf(kindConsumer, f.resource.Namespace, f.resource.Name)}
	owner, managed := desired.ConsumerMigration(&f.resource, in)
	if !managed || !r.cfg.External {
		return w, nil
	}
	return &staged{step: pipeline.NewConsumerMigration(f.cfg, owner.CredentialsDir, o), worker: w}, nil
}

func replicasOf(n *int32) int32 {
	if n == nil {
		return desired.DefaultReplicas
	}
	return *n
}

// keepServers starts embedded servers again that are lost.
func (r *runner) keepServers(ctx context.Context, beside *sync.WaitGroup) {
	if r.servers == nil {
		return
	}
	say := func(line string) {
		select {
		case <-ctx.Done():
		case r.news <- line:
		}
	}
	kept := map[string]keepable{"PostgreSQL": r.servers.postgres}
	if r.servers.nats != nil {
		kept["NATS"] = r.servers.nats
	}
	for name, s := range kept { // the stand-in for Kafka ends with us
		beside.Go(func() {
			if err := keep(ctx, name, s, say); err != nil {
				select {
				case <-ctx.Done():
				case r.broken <- err:
				}
			}
		})
	}
}

// drain waits until every worker has finished and released, within bounds.
func (r *runner) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range r.relays {
			r.relays[i].wait()
		}
		for i := range r.inboxes {
			r.inboxes[i].wait()
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("workers did not finish within %s: what they held is free again when their leases end",
			drainTime)
	}
}

// show redraws the table, or writes lines, until ctx ends or an embedded server is lost for good.
func (r *runner) show(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	drop := make(<-chan time.Time)
	if r.cfg.DropEvery > 0 {
		dropper := time.NewTicker(r.cfg.DropEvery)
		defer dropper.Stop()
		drop = dropper.C
	}
	for drops := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.broken:
			return err
		case line := <-r.news:
			r.screen.say(line)
		case <-drop:
			if err := r.dropOne(ctx); err != nil {
				return err
			}
			if drops++; drops == r.cfg.DropCount {
				drop = nil
			}
		case <-ticker.C:
			v := r.look(ctx)
			if err := r.screen.draw(&v); err != nil {
				return err
			}
		}
	}
}

// dropOne ends a worker of every resource as kill -9 would.
func (r *runner) dropOne(ctx context.Context) error {
	for i := range r.relays {
		dropped, err := r.relays[i].drop(ctx)
		if err != nil {
			return err
		}
		if dropped {
			r.screen.say("dropped a relay of " + r.relays[i].name + " without settle or release")
		}
	}
	for i := range r.inboxes {
		dropped, err := r.inboxes[i].drop(ctx)
		if err != nil {
			return err
		}
		if dropped {
			r.screen.say("dropped a consumer of " + r.inboxes[i].name + " without ack or release")
		}
	}
	return nil
}

// look asks all workers and computes each resource's status.
func (r *runner) look(ctx context.Context) view {
	now := r.now()
	v := view{now: now, started: r.started, embedded: !r.cfg.External}
	for i := range r.relays {
		f := &r.relays[i]
		reports := f.reports(ctx)
		of := facts(f.cfg.Resource.Generation, len(reports), now)
		f.resource.Status = status.Relays().Compute(f.resource.Status, of, reports)
		v.relays = append(v.relays, f.resource)
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		reports := f.reports(ctx)
		of := facts(f.cfg.Resource.Generation, len(reports), now)
		f.resource.Status = status.Consumers().Compute(f.resource.Status, of, reports)
		v.consumers = append(v.consumers, f.resource)
	}
	return v
}

func facts(generation int64, workers int, now time.Time) status.Facts {
	n := int32(workers) //nolint:gosec // at most 64 replicas
	return status.Facts{Generation: generation, Replicas: n, Ready: n, Now: now}
}

// summary says what was done and where to find it.
func (r *runner) summary() error {
	for i := range r.relays {
		t := r.relays[i].totals()
		r.screen.say(fmt.Sprintf("%s: %d published%s", r.relays[i].name, t.published, t.droppedWords()))
	}
	for i := range r.inboxes {
		t := r.inboxes[i].totals()
		r.screen.say(fmt.Sprintf("%s: %d applied, %s without effect%s",
			r.inboxes[i].name, t.applied, plural(t.duplicates, "duplicate"), t.droppedWords()))
	}
	if r.cfg.Data != "" && !r.cfg.External {
		r.screen.say("data in " + r.cfg.Data)
	}
	return r.screen.err
}
