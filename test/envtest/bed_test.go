//go:build kubernetes

// Package envtest tries the API's rules and the operator on a real API server, with real controllers beside it. The
// kubelet's part, and the workers', is played by the tests.
package envtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/internal/controller"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/test/cluster"
)

const (
	// patience bounds a wait for something that takes a moment, on a machine that is busy with other tests.
	patience = 2 * time.Minute
	// step is the pause between two looks of a wait.
	step = 50 * time.Millisecond
	// image is what all workers run.
	image = "postrider:test"
	// allowedClass is the one priority class that the operator of the tests accepts.
	allowedClass = "messaging"
)

// bed is the cluster of all tests, with one operator that has the rights that are installed, and no others.
type bed struct {
	plane *cluster.Plane
	admin client.Client
	sent  *requests
}

var (
	theBed *bed
	// workerPort is where the workers of the tests answer.
	workerPort int
)

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	plane, err := cluster.Start(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "envtest: %v\n", err)
		cancel()
		return 1
	}
	b := &bed{plane: plane, sent: &requests{}}
	workerPort, err = freePort(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "envtest: %v\n", err)
	}
	done := make(chan error, 1)
	code := 1
	if err := b.start(ctx, done); err != nil {
		fmt.Fprintf(os.Stderr, "envtest: %v\n", err)
	} else {
		theBed = b
		code = m.Run()
		cancel()
		if err := <-done; err != nil {
			fmt.Fprintf(os.Stderr, "envtest: the operator ended badly: %v\n", err)
			code = 1
		}
	}
	cancel()
	if err := plane.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "envtest: %v\n", err)
		code = 1
	}
	return code
}

// start installs the operator's rights and runs it as its own service account.
func (b *bed) start(ctx context.Context, done chan<- error) error {
	var err error
	if b.admin, err = newAdmin(b.plane); err != nil {
		return err
	}
	if err := b.install(ctx); err != nil {
		return err
	}
	return b.operate(ctx, controller.Options{PriorityClasses: []string{allowedClass}}, done)
}

// newAdmin returns a client of the administrator.
func newAdmin(plane *cluster.Plane) (client.Client, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, err
	}
	if err := rbacv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	admin, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return admin, nil
}

// operate runs an operator as its own service account until ctx ends, and says at done how it ended.
func (b *bed) operate(ctx context.Context, o controller.Options, done chan<- error) error {
	as := rest.CopyConfig(b.plane.Config)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:postrider-system:postrider-manager",
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	as.Wrap(b.sent.watch)
	scheme, err := controller.Scheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Scheme: scheme, Cache: controller.CacheOptions(nil), Client: client.Options{FieldOwner: controller.FieldOwner},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: new(true)}, // several operators in one process
	})
	if err != nil {
		return fmt.Errorf("make the operator: %w", err)
	}
	o.Settings = desired.Settings{Image: image, OperatorNamespace: "postrider-system"}
	o.Scraper = controller.NewHTTPScraper(workerPort)
	if err := controller.Setup(mgr, o); err != nil {
		return err
	}
	go func() { done <- mgr.Start(ctx) }()
	return nil
}

// install applies what is installed but the operator's own Pods: namespace, service account and rights.
func (b *bed) install(ctx context.Context) error {
	raw, err := os.ReadFile("../../dist/install.yaml")
	if err != nil {
		return fmt.Errorf("read what is installed: %w", err)
	}
	for document := range strings.SplitSeq(string(raw), "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
			return fmt.Errorf("read what is installed: %w", err)
		}
		switch u.GetKind() {
		case "", "CustomResourceDefinition", "Deployment", "PodDisruptionBudget", "Service":
			continue
		}
		if err := b.admin.Create(ctx, u); err != nil {
			return fmt.Errorf("install %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// requests counts what the operator writes, by the path it writes to.
type requests struct {
	mu     sync.Mutex
	writes map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (s *requests) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			s.mu.Lock()
			if s.writes == nil {
				s.writes = make(map[string]int)
			}
			s.writes[r.Method+" "+r.URL.Path]++
			s.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// in returns the writes to a namespace, events apart.
func (s *requests) in(namespace string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make(map[string]int)
	for path, n := range s.writes {
		if strings.Contains(path, "/namespaces/"+namespace+"/") && !strings.HasSuffix(path, "/events") {
			found[path] = n
		}
	}
	return found
}

// space is a namespace of one test.
type space struct {
	*bed
	t    testing.TB
	name string
}

func newSpace(t *testing.T) *space {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := theBed.admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return &space{bed: theBed, t: t, name: ns.Name}
}

// get reads an object of the space and says whether it is there.
func (s *space) get(name string, into client.Object) bool {
	s.t.Helper()
	err := s.admin.Get(s.t.Context(), client.ObjectKey{Namespace: s.name, Name: name}, into)
	if err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatal(err)
	}
	return err == nil
}

// eventually waits until check returns nothing; what it returned last is the failure.
func eventually(t testing.TB, what string, check func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s: %s", what, patience, wrong)
		case <-tick.C:
		}
	}
}
