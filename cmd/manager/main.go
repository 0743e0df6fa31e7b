// Command manager is the operator: it turns resources into workers and what the workers report into status.
//
// It reads no Secret and dials neither database nor broker. When it is gone the workers go on; several may run, and
// the one that holds the lease works.
package main

//go:generate go test . -run ^(TestInstallIsCurrent|TestRights)$ -update

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/telemetry"
)

const (
	exitFailed = 1
	exitUsage  = 2
	// shutdownTimeout bounds the passes that are under way when the manager ends.
	shutdownTimeout = 20 * time.Second
	// syncTimeout bounds a look at whether the caches are filled.
	syncTimeout = time.Second
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	build := telemetry.ThisBuild()
	f, err := parseFlags(args, build, stdout, stderr)
	switch {
	case errors.Is(err, errDone):
		return 0
	case err != nil:
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	log := telemetry.NewLogger(stderr, f.logLevel)
	if err := serve(ctx, f, build, log); err != nil {
		log.ErrorContext(ctx, "Ended", "err", err)
		return exitFailed
	}
	return 0
}

// serve runs the manager until ctx ends.
func serve(ctx context.Context, f flags, build telemetry.Build, log *slog.Logger) error {
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	if err := telemetry.RegisterBuild(metrics.Registry, build); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	rest, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	rest.QPS, rest.Burst, rest.UserAgent = float32(f.kubeAPIQPS), f.kubeAPIBurst, "postrider-manager/"+build.Version
	o, err := options(f, logr.FromSlogHandler(log.Handler()))
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(rest, o)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := setup(mgr, f); err != nil {
		return err
	}
	log.InfoContext(ctx, "Starting", "version", build.Version, "namespaces", f.namespaces.String())
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// setup adds reconcilers and probes.
func setup(mgr ctrl.Manager, f flags) error {
	gauges, err := controller.NewGauges(metrics.Registry)
	if err != nil {
		return err
	}
	if err := controller.Setup(mgr, controller.Options{
		Gauges:                 gauges,
		Settings:               desired.Settings{Image: f.workerImage, OperatorNamespace: f.policyFrom},
		AllowInsecureTransport: f.allowInsecure,
		PriorityClasses:        f.priorityClasses,
		Concurrency:            f.concurrentPasses,
	}); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add probe: %w", err)
	}
	err = mgr.AddReadyzCheck("caches", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), syncTimeout)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add probe: %w", err)
	}
	return nil
}

// options are those of the manager for a command line.
func options(f flags, log logr.Logger) (ctrl.Options, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return ctrl.Options{}, err
	}
	timeout := shutdownTimeout
	o := ctrl.Options{
		Scheme: scheme,
		Logger: log,
		Cache:  controller.CacheOptions(f.namespaces),
		Client: client.Options{FieldOwner: controller.FieldOwner},

		LeaderElection:                f.leaderElect,
		LeaderElectionID:              f.leaderElectionKey,
		LeaderElectionNamespace:       f.leaderNamespace,
		LeaderElectionReleaseOnCancel: true, // the process ends right after, so nobody works on without the lease
		GracefulShutdownTimeout:       &timeout,

		HealthProbeBindAddress: f.healthListen,
		Metrics:                metricsserver.Options{BindAddress: f.metricsListen, SecureServing: f.metricsSecure},
	}
	if f.metricsSecure {
		o.Metrics.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return o, nil
}
