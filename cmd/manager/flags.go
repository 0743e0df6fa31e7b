package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/postrider/postrider/internal/telemetry"
)

// errDone says that the command line asked for something that is done: a version or a help text was printed.
var errDone = errors.New("done")

// helpText stands above the flags.
const helpText = `Usage: manager --worker-image IMAGE [flags]

The operator of Postrider: it turns OutboxRelay and InboxConsumer resources into
workers, and what the workers report into status. It reads no Secret and dials
neither database nor broker. It runs until SIGTERM; of several, the one that holds
the lease works.

Flags:
`

// flags are the command line of the manager.
type flags struct {
	workerImage       string
	policyFrom        string
	namespaces        list
	allowInsecure     bool
	priorityClasses   list
	leaderElect       bool
	leaderNamespace   string
	metricsListen     string
	metricsSecure     bool
	healthListen      string
	logLevel          slog.Level
	concurrentPasses  int
	kubeAPIQPS        float64
	kubeAPIBurst      int
	leaderElectionKey string
}

// list is a flag of words joined by commas; it may be given several times.
type list []string

// String implements flag.Value.
func (l *list) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *list) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			*l = append(*l, word)
		}
	}
	return nil
}

// parseFlags reads the command line. A version or help text that was asked for goes to out. An error other than errDone
// was told on failures already.
func parseFlags(args []string, build telemetry.Build, out, failures io.Writer) (flags, error) {
	var f flags
	var level string
	var version bool
	set := flag.NewFlagSet("manager", flag.ContinueOnError)
	set.SetOutput(failures)
	set.Usage = func() {} // help goes to out, and a mistake needs one line, not all of it
	config.RegisterFlags(set)
	set.Lookup(config.KubeconfigFlagName).Usage = "kubeconfig file of the API server; a Pod needs none"
	set.StringVar(&f.workerImage, "worker-image", "", "`image` of all workers, best with its digest; required")
	set.StringVar(&f.policyFrom, "network-policy-from", "", "this manager's namespace: workers get a NetworkPolicy by "+
		"which they are reached from it, and for metrics from namespaces labelled postrider.dev/metrics=enabled, alone; "+
		"where unset, none is made, and one that is there stays")
	set.Var(&f.namespaces, "namespaces", "`namespaces` to look after, joined by commas; all of them where unset")
	set.BoolVar(&f.allowInsecure, "allow-insecure-transport", false, "permit tls.mode Insecure, which sends plain text")
	set.Var(&f.priorityClasses, "priority-classes", "priority `classes` that resources may name, joined by commas")
	set.BoolVar(&f.leaderElect, "leader-elect", true, "work only while this process holds the lease; others wait")
	set.StringVar(&f.leaderNamespace, "leader-election-namespace", "", "namespace of the lease; the Pod's where unset")
	set.StringVar(&f.leaderElectionKey, "leader-election-id", "manager.postrider.dev", "name of the lease")
	set.StringVar(&f.metricsListen, "metrics-listen", ":8443", "address of /metrics; 0 turns it off")
	set.BoolVar(
		&f.metricsSecure,
		"metrics-secure",
		true,
		"serve metrics over HTTPS, and only to whom the API server grants them",
	)
	set.StringVar(&f.healthListen, "health-listen", ":8081", "address of /healthz and /readyz; 0 turns it off")
	set.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	set.IntVar(&f.concurrentPasses, "concurrent-passes", 8, "resources of a kind to work on at once")
	set.Float64Var(&f.kubeAPIQPS, "kube-api-qps", 50, "requests a second to the API server, on average")
	set.IntVar(&f.kubeAPIBurst, "kube-api-burst", 100, "requests at once to the API server")
	set.BoolVar(&version, "version", false, "print the version and exit")
	if err := set.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) { // flag has printed it already
			return f, err
		}
		fmt.Fprint(out, helpText)
		set.SetOutput(out)
		set.PrintDefaults()
		return f, errDone
	}
	if version {
		fmt.Fprintf(out, "manager %s\n", build)
		return f, errDone
	}
	return f, f.check(set, level)
}

func (f *flags) check(set *flag.FlagSet, level string) error {
	parsed, err := telemetry.ParseLevel(level)
	f.logLevel = parsed
	switch {
	case err != nil:
		err = fmt.Errorf("--log-level: %w", err)
	case set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	case f.workerImage == "":
		err = errors.New("--worker-image: name the image that workers run, usually the manager's own")
	case f.concurrentPasses < 1:
		err = errors.New("--concurrent-passes: must be at least 1")
	}
	if err != nil {
		fmt.Fprintf(set.Output(), "manager: %v\n", err)
	}
	return err
}
