package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/telemetry"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		code int
		says string // on either output
	}{
		"an image is needed":    {nil, exitUsage, "--worker-image"},
		"a level must be one":   {[]string{"--worker-image=x", "--log-level=loud"}, exitUsage, "--log-level"},
		"nothing else is taken": {[]string{"--worker-image=x", "y"}, exitUsage, `unexpected argument "y"`},
		"no pass at all is no operator": {
			[]string{"--worker-image=x", "--concurrent-passes=0"},
			exitUsage,
			"--concurrent-passes",
		},
		"an unknown flag is refused": {[]string{"--image=x"}, exitUsage, "-image"},
		"the version is printed":     {[]string{"--version"}, 0, "manager "},
		"help is printed":            {[]string{"--help"}, 0, "-allow-insecure-transport"},
		"help says what it is":       {[]string{"-h"}, 0, "Usage: manager --worker-image IMAGE"},
		"there must be an API server": {
			[]string{"--worker-image=x", "--kubeconfig=/nowhere"},
			exitFailed,
			"find the API server",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			if code := run(
				tc.args,
				&out,
				&errs,
			); code != tc.code ||
				!strings.Contains(out.String()+errs.String(), tc.says) {
				t.Errorf("run() = %d, %q, %q, want %d and %q", code, out.String(), errs.String(), tc.code, tc.says)
			}
			if tc.code == 0 && errs.Len() > 0 {
				t.Errorf("what was asked for is an error: %q", &errs)
			}
			if tc.code == exitUsage && (out.Len() > 0 || strings.Count(errs.String(), "\n") != 1) {
				t.Errorf("a mistake takes more than its one line: %q, %q", &out, &errs)
			}
		})
	}
}

func TestOptionsFollowTheFlags(t *testing.T) {
	t.Parallel()
	f, err := parseFlags([]string{
		"--worker-image=x", "--namespaces=shop, billing", "--namespaces=third", "--leader-election-namespace=here",
	}, telemetry.Build{}, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list{"shop", "billing", "third"}, f.namespaces); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
	o, err := options(f, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Cache.DefaultNamespaces) != 3 || !o.Cache.ReaderFailOnMissingInformer {
		t.Errorf("cache = %+v, want three namespaces and no informer by accident", o.Cache)
	}
	if !o.LeaderElection || !o.LeaderElectionReleaseOnCancel || o.LeaderElectionNamespace != "here" {
		t.Error("leader election does not follow the flags, or does not release")
	}
	if o.Client.FieldOwner != controller.FieldOwner || !o.Metrics.SecureServing || o.Metrics.FilterProvider == nil {
		t.Error("field owner or protection of metrics is missing")
	}
	if *o.GracefulShutdownTimeout >= 30*time.Second {
		t.Errorf("shutdown takes %v, longer than a Pod has", *o.GracefulShutdownTimeout)
	}
}

func TestMetricsMayBeServedPlain(t *testing.T) {
	t.Parallel()
	o, err := options(flags{metricsListen: "0"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if o.Metrics.FilterProvider != nil || o.Metrics.SecureServing || o.Metrics.BindAddress != "0" {
		t.Errorf("metrics = %+v, want them off", o.Metrics)
	}
}
