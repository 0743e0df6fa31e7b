// Package stage sets the shop of the samples up in a cluster: its servers, Postrider as it is installed, and the
// samples. The quick start for clusters plays on it, and so do the end-to-end tests.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/shop"
)

const (
	samples = "config/samples"
	// overlay is the samples for servers without TLS.
	overlay = "config/quickstart"
	// Namespace is that of the samples.
	Namespace = "shop"
	// System is that of the manager.
	System = "postrider-system"

	// imageInFiles is the image's name in dist/install.yaml.
	imageInFiles = "postrider:dev"
	// insecureArgument lets resources have tls.mode Insecure, which the manager refuses as it is installed.
	insecureArgument = "        - --allow-insecure-transport\n"
	// Effects describes the shop's ledger to `postrider verify`.
	Effects = "ledger:order_id:version:entry"

	readyPatience = 4 * time.Minute
	poll          = 250 * time.Millisecond
)

// Config says where the stage is.
type Config struct {
	// Root is the clone's folder, Dir one for files of the stage.
	Root, Dir string
	// Kubectl returns a call of kubectl as administrator.
	Kubectl func(ctx context.Context, args ...string) *exec.Cmd
	// Image is the image to run; empty means postrider:dev, as the files say.
	Image string
	// Postrider is the command's binary.
	Postrider string
	// Out is told what is done, and takes what kubectl prints.
	Out io.Writer
}

// Stage is a cluster with the shop in it.
type Stage struct {
	// Sides are the services' databases.
	Sides *shop.Sides

	cfg    Config
	closed []func()
	orders int // placed by earlier plays
	totals shop.Totals
}

// SetUp brings everything up and returns when both resources are ready. The servers are those that serve starts.
func SetUp(ctx context.Context, cfg Config, serve Serve) (*Stage, error) {
	s := &Stage{cfg: cfg}
	if err := s.setUp(ctx, serve); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stage) setUp(ctx context.Context, serve Serve) error {
	set, err := shop.Samples(ctx, filepath.Join(s.cfg.Root, samples))
	if err != nil {
		return err
	}
	if err := s.Do(ctx, "create", "namespace", Namespace); err != nil {
		return err
	}
	servers, err := serve(ctx, s, set)
	if servers.Close != nil {
		s.closed = append(s.closed, servers.Close)
	}
	if err != nil {
		return err
	}
	if err := shop.Prepare(ctx, servers.Superuser, set); err != nil {
		return err
	}
	if err := servers.Endpoints.Write(s.cfg.Dir); err != nil {
		return err
	}
	if err := s.Install(ctx); err != nil {
		return err
	}
	if err := s.Apply(ctx); err != nil {
		return err
	}
	if err := s.Ready(ctx); err != nil {
		return err
	}
	s.Sides, err = shop.Open(ctx, filepath.Join(s.cfg.Root, samples), servers.Endpoints)
	return err
}

// Close ends what the stage has open. What is in the cluster stays.
func (s *Stage) Close() {
	if s.Sides != nil {
		s.Sides.Close()
	}
	for _, end := range s.closed {
		end()
	}
}

// say tells of a command before it runs.
func (s *Stage) say(format string, args ...any) { _, _ = fmt.Fprintf(s.cfg.Out, format+"\n", args...) }

// Do runs kubectl and shows it.
func (s *Stage) Do(ctx context.Context, args ...string) error {
	s.say("$ kubectl %s", strings.Join(args, " "))
	cmd := s.cfg.Kubectl(ctx, args...)
	cmd.Stdout, cmd.Stderr = s.cfg.Out, s.cfg.Out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w", args[0], err)
	}
	return nil
}

// Read runs kubectl and returns what it prints.
func (s *Stage) Read(ctx context.Context, args ...string) (string, error) {
	out, err := s.cfg.Kubectl(ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// apply pipes resources into kubectl.
func (s *Stage) apply(ctx context.Context, resources string) error {
	cmd := s.cfg.Kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(resources), s.cfg.Out, s.cfg.Out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl apply: %w", err)
	}
	return nil
}

// Install applies dist/install.yaml and waits for the manager.
func (s *Stage) Install(ctx context.Context) error {
	return s.InstallImages(ctx, s.image(), s.image())
}

func (s *Stage) image() string {
	if s.cfg.Image == "" {
		return imageInFiles
	}
	return s.cfg.Image
}

// InstallImages is Install with images of one's own for manager and workers.
func (s *Stage) InstallImages(ctx context.Context, manager, worker string) error {
	raw, err := os.ReadFile(filepath.Join(s.cfg.Root, "dist", "install.yaml"))
	if err != nil {
		return fmt.Errorf("read what is installed: %w", err)
	}
	s.say(
		"$ kubectl apply -f dist/install.yaml   # with --allow-insecure-transport: the servers of the demonstration " +
			"have no TLS",
	)
	text := strings.ReplaceAll(string(raw), "image: "+imageInFiles+"\n", "image: "+manager+"\n")
	text = strings.ReplaceAll(text, "--worker-image="+imageInFiles+"\n", "--worker-image="+worker+"\n"+insecureArgument)
	if err := s.apply(ctx, text); err != nil {
		return err
	}
	return s.rolledOut(ctx, System, "postrider-manager", func() error { return s.imageMissing(ctx, System) })
}

// Apply applies the samples.
func (s *Stage) Apply(ctx context.Context) error {
	s.say("$ kubectl kustomize --load-restrictor=LoadRestrictionsNone %s | kubectl apply -f -", overlay)
	rendered, err := s.Read(
		ctx,
		"kustomize",
		"--load-restrictor=LoadRestrictionsNone",
		filepath.Join(s.cfg.Root, overlay),
	)
	if err != nil {
		return err
	}
	return s.apply(ctx, rendered)
}

// Ready waits until both resources are.
func (s *Stage) Ready(ctx context.Context) error {
	for _, resource := range []string{"outboxrelay/orders", "inboxconsumer/billing"} {
		s.say("waiting for %s to be ready", resource)
		err := s.until(ctx, resource+" to be ready", func() (string, error) {
			ready, err := s.Read(ctx, "--namespace", Namespace, "get", resource,
				`--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			if err != nil || ready == "True" {
				return "", err
			}
			return s.Read(ctx, "--namespace", Namespace, "get", resource, "--output=jsonpath={.status.conditions}")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RolledOut waits until a Deployment runs its newest Pods only.
func (s *Stage) RolledOut(ctx context.Context, namespace, deployment string) error {
	return s.rolledOut(ctx, namespace, deployment, func() error { return nil })
}

// rolledOut gives up where hopeless says why.
func (s *Stage) rolledOut(ctx context.Context, namespace, deployment string, hopeless func() error) error {
	const state = `jsonpath={.metadata.generation} {.spec.replicas} {.status.observedGeneration} ` +
		`{.status.updatedReplicas} {.status.availableReplicas} {.status.replicas}`
	return s.until(ctx, "Deployment "+deployment, func() (string, error) {
		if err := hopeless(); err != nil {
			return "", err
		}
		read, err := s.Read(ctx, "--namespace", namespace, "get", "deployment", deployment, "--output="+state)
		if err != nil {
			return "", err
		}
		n := strings.Fields(read)
		if len(n) == 6 && n[0] == n[2] && n[1] == n[3] && n[1] == n[4] && n[1] == n[5] {
			return "", nil
		}
		return read, nil
	})
}

// imageMissing says what to do where the cluster does not have the image: waiting would not help.
func (s *Stage) imageMissing(ctx context.Context, namespace string) error {
	reasons, err := s.Read(ctx, "--namespace", namespace, "get", "pods",
		"--output=jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}")
	if err != nil {
		return err
	}
	for reason := range strings.FieldsSeq(reasons) {
		if strings.Contains(reason, "Image") {
			return fmt.Errorf(
				"the cluster cannot get the image %s (%s): build it with the Dockerfile, then load it into "+
					"the nodes (kind load docker-image %[1]s), or push it and name it: IMAGE=registry.example/postrider:tag "+
					"make quickstart-cluster",
				s.image(),
				reason,
			)
		}
	}
	return nil
}

// until waits until check returns neither words nor an error. The words are the failure if it takes too long.
func (s *Stage) until(ctx context.Context, what string, check func() (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		wrong, err := check()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if wrong == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waited for %s: %s", what, wrong), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Play opens the shop and waits until all its business has had its effect.
func (s *Stage) Play(ctx context.Context, cfg shop.Config) (shop.Totals, error) {
	if err := s.Open(ctx, cfg); err != nil {
		return s.totals, err
	}
	return s.Settle(ctx)
}

// Open opens the shop and returns when it closes. It may be opened again, with new orders.
func (s *Stage) Open(ctx context.Context, cfg shop.Config) error {
	cfg.First = s.orders
	s.orders += cfg.Orders
	totals, err := shop.New(cfg, s.Sides.Orders, s.Sides.Writer).Drive(ctx)
	s.totals = s.totals.Plus(totals)
	return err
}

// Settle waits until billing has booked everything, checks the ledger, and returns what the shop has committed since the
// stage was set up.
func (s *Stage) Settle(ctx context.Context) (shop.Totals, error) {
	var ledger shop.Ledger
	err := s.until(ctx, "the ledger to be complete", func() (string, error) {
		var err error
		ledger, err = shop.ReadLedger(ctx, s.Sides.Billing)
		if err != nil || ledger.Entries >= s.totals.Messages {
			return "", err
		}
		return fmt.Sprintf("%d of %d entries", ledger.Entries, s.totals.Messages), nil
	})
	if err != nil {
		return s.totals, err
	}
	return s.totals, s.totals.Check(ledger)
}

// Show prints what a person sees.
func (s *Stage) Show(ctx context.Context) error {
	return s.Do(ctx, "--namespace", Namespace, "get", "outboxrelays,inboxconsumers")
}

// Verify proves from outside that every message was published and applied once, in order.
func (s *Stage) Verify(ctx context.Context) error {
	args := []string{
		"verify", "-f", samples, "--data", "DATA", "--grace", "0s", "--effects", Effects, "--effects-complete",
	}
	s.say("$ postrider %s", strings.Join(args, " "))
	args[2], args[4] = filepath.Join(s.cfg.Root, samples), s.cfg.Dir
	cmd := exec.CommandContext(ctx, s.cfg.Postrider, args...)
	cmd.Stdout, cmd.Stderr = s.cfg.Out, s.cfg.Out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("postrider verify: %w", err)
	}
	return nil
}
