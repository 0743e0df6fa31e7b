// Package up runs resources on one machine: the cluster's YAML unchanged, its relays and consumers within this
// process, and one embedded PostgreSQL and one embedded NATS in place of every host they name.
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
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// lineEvery is how often plain lines are written while nothing changes.
	lineEvery = 5 * time.Second
)

// Config says what to run and how.
type Config struct {
	// Set holds the resources with their Secrets, loaded without problems.
	Set *manifest.Set
	// External dials the hosts that the resources name instead of embedded servers.
	External bool
	// Data keeps the embedded servers' data and endpoints.json beyond the end. Empty means a temporary folder.
	Data string
	// PostgresPort and NATSPort are those of the embedded servers; 0 means free ones.
	PostgresPort, NATSPort int
	// Init are SQL files to run in embedded databases before the workers start, as a service's own migrations do.
	Init []InitSQL
	// DropEvery ends one relay and one consumer as kill -9 would, again and again; 0 means never.
	DropEvery time.Duration
	// Out takes the table or lines. Width is that of a terminal, where the table is redrawn in place; nil elsewhere.
	Out   io.Writer
	Width func() int
	// Log takes the workers' logs.
	Log *slog.Logger
}

// InitSQL is a file to run in a database as its owner.
type InitSQL struct{ Database, File string }

// runner is one run.
type runner struct {
	cfg     Config
	root    string // of the workers' files
	servers *servers
	now     func() time.Time
	started time.Time
	relays  []relayFleet
	inboxes []consumerFleet
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

// Run brings everything up, shows it until ctx ends, then drains and sums up.
func Run(ctx context.Context, cfg Config) (err error) {
	r := &runner{cfg: cfg, now: time.Now}
	r.root, err = os.MkdirTemp("", "postrider-up-")
	if err != nil {
		return fmt.Errorf("make a folder for credentials: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.root)) }()
	if err := r.build(); err != nil {
		return err
	}
	if !cfg.External {
		if err := r.embed(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.servers.stop(context.WithoutCancel(ctx))) }()
	}
	if err := r.prepareSchemas(ctx); err != nil {
		return err
	}
	return r.work(ctx)
}

// build writes the workers' files and computes their configurations, as the operator would mount them.
func (r *runner) build() error {
	for _, relay := range r.cfg.Set.Relays {
		in := desired.Inputs{Root: r.rootOf("relay", relay.Namespace, relay.Name)}
		if err := r.cfg.Set.WriteFiles(relay.Namespace, desired.RelayReferences(relay.OutboxRelay), in.Root); err != nil {
			return err
		}
		cfg, err := desired.Relay(relay.OutboxRelay, in)
		if err != nil {
			return fmt.Errorf("%s: outboxrelay/%s: %w", relay.Origin, relay.Name, err)
		}
		cfg.StatusTick = config.Duration(tick) // the table is looked at, not written to an API server
		f := &fleet{name: "outboxrelay/" + relay.Name, log: r.cfg.Log}
		r.relays = append(r.relays, relayFleet{resource: *relay.OutboxRelay, cfg: cfg, fleet: f})
	}
	for _, consumer := range r.cfg.Set.Consumers {
		in := desired.Inputs{Root: r.rootOf("consumer", consumer.Namespace, consumer.Name)}
		if err := r.cfg.Set.WriteFiles(
			consumer.Namespace,
			desired.ConsumerReferences(consumer.InboxConsumer),
			in.Root,
		); err != nil {
			return err
		}
		cfg, err := desired.Consumer(consumer.InboxConsumer, in)
		if err != nil {
			return fmt.Errorf("%s: inboxconsumer/%s: %w", consumer.Origin, consumer.Name, err)
		}
		cfg.StatusTick = config.Duration(tick)
		f := &fleet{name: "inboxconsumer/" + consumer.Name, log: r.cfg.Log}
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
	defer stop()
	for i := range r.relays {
		f := &r.relays[i]
		f.start = func() (worker, error) { return pipeline.NewRelay(f.cfg, r.options(f.name)) }
		if err := f.run(working, int(replicasOf(f.resource.Spec.Replicas))); err != nil {
			return err
		}
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		f.start = func() (worker, error) { return pipeline.NewConsumer(f.cfg, r.options(f.name)) }
		if err := f.run(working, int(replicasOf(f.resource.Spec.Replicas))); err != nil {
			return err
		}
	}
	err := r.show(working)
	ended := context.WithoutCancel(ctx)
	stop()
	return errors.Join(err, r.drain(ended), r.summary(ended))
}

func (r *runner) options(name string) pipeline.Options {
	return pipeline.Options{Log: r.cfg.Log.With("name", name), AllowLoopback: true}
}

func replicasOf(n *int32) int32 {
	if n == nil {
		return desired.DefaultReplicas
	}
	return *n
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
		return fmt.Errorf(
			"workers did not finish within %s: what they held is free again when their leases end",
			drainTime,
		)
	}
}

// show redraws the table, or writes lines, until ctx ends or an embedded server is lost.
func (r *runner) show(ctx context.Context) error {
	screen := newScreen(r.cfg.Out, r.cfg.Width)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	drop := make(<-chan time.Time)
	if r.cfg.DropEvery > 0 {
		dropper := time.NewTicker(r.cfg.DropEvery)
		defer dropper.Stop()
		drop = dropper.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.servers.lost():
			return r.servers.lostError()
		case <-drop:
			if err := r.dropOne(ctx, screen); err != nil {
				return err
			}
		case <-ticker.C:
			if err := screen.draw(r.look(ctx)); err != nil {
				return err
			}
		}
	}
}

// dropOne ends a worker of every resource as kill -9 would.
func (r *runner) dropOne(ctx context.Context, screen *screen) error {
	for i := range r.relays {
		if err := r.relays[i].drop(ctx); err != nil {
			return err
		}
		screen.say("dropped a relay of " + r.relays[i].name + " without settle or release")
	}
	for i := range r.inboxes {
		if err := r.inboxes[i].drop(ctx); err != nil {
			return err
		}
		screen.say("dropped a consumer of " + r.inboxes[i].name + " without ack or release")
	}
	return nil
}

// look asks all workers and computes each resource's status.
func (r *runner) look(ctx context.Context) view {
	now := r.now()
	v := view{now: now, started: r.started}
	for i := range r.relays {
		f := &r.relays[i]
		reports := f.reports(ctx)
		f.resource.Status = status.Relay(
			f.resource.Status,
			facts(f.cfg.Resource.Generation, len(reports), now),
			reports,
		)
		r.asNamed(&f.resource.Status.Conditions)
		v.relays = append(v.relays, f.resource)
	}
	for i := range r.inboxes {
		f := &r.inboxes[i]
		reports := f.reports(ctx)
		f.resource.Status = status.Consumer(
			f.resource.Status,
			facts(f.cfg.Resource.Generation, len(reports), now),
			reports,
		)
		r.asNamed(&f.resource.Status.Conditions)
		v.consumers = append(v.consumers, f.resource)
	}
	return v
}

// asNamed leaves out the warning that embedded servers use no TLS: it was told at the start, and it is not the
// resource's doing.
func (r *runner) asNamed(conditions *[]metav1.Condition) {
	if !r.cfg.External {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionInsecureTransport)
	}
}

func facts(generation int64, workers int, now time.Time) status.Facts {
	n := int32(workers) //nolint:gosec // at most 64 replicas
	return status.Facts{Generation: generation, Replicas: n, Ready: n, Now: now}
}

// summary says what was done and what is left.
func (r *runner) summary(ctx context.Context) error {
	for i := range r.relays {
		t := r.relays[i].totals(ctx)
		if _, err := fmt.Fprintf(
			r.cfg.Out,
			"%s: %d published%s\n",
			r.relays[i].name,
			t.published,
			t.droppedWords(),
		); err != nil {
			return fmt.Errorf("write summary: %w", err)
		}
	}
	for i := range r.inboxes {
		t := r.inboxes[i].totals(ctx)
		if _, err := fmt.Fprintf(r.cfg.Out, "%s: %d applied, %d duplicates without effect%s\n",
			r.inboxes[i].name, t.applied, t.duplicates, t.droppedWords()); err != nil {
			return fmt.Errorf("write summary: %w", err)
		}
	}
	if r.cfg.Data != "" && !r.cfg.External {
		if _, err := fmt.Fprintf(r.cfg.Out, "data kept in %s\n", r.cfg.Data); err != nil {
			return fmt.Errorf("write summary: %w", err)
		}
	}
	return nil
}

func (d dropped) droppedWords() string {
	if d.workers == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d workers dropped on the way; what they had not reported is not counted)", d.workers)
}
