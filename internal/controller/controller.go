package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	// FieldOwner is the one field manager of everything that the operator writes.
	FieldOwner = "postrider"
	// ReplicasOwner holds the replicas of a Deployment whose resource names none, until a scaler takes them.
	ReplicasOwner = "postrider-initial-replicas"

	defaultConcurrency = 8
	// passTimeout bounds a pass: it is a few requests to the API server and to Pods.
	passTimeout = time.Minute
)

// Scraper asks a worker how it stands.
type Scraper interface {
	Report(ctx context.Context, pod *corev1.Pod) (statusz.Report, error)
}

// Options are what the operator decides for all resources.
type Options struct {
	// Settings are those of the workers.
	Settings desired.Settings
	// AllowInsecureTransport permits tls.mode Insecure.
	AllowInsecureTransport bool
	// PriorityClasses are those that resources may name.
	PriorityClasses []string
	// Concurrency is how many resources of a kind are worked on at once; 0 means a usual number.
	Concurrency int
	// Scraper asks workers. Nil means by HTTP on the port of internal/desired.
	Scraper Scraper
	// Gauges show how the resources stand. Nil means nowhere.
	Gauges *Gauges
	// Now is the clock; nil means the system's.
	Now func() time.Time
}

// Setup adds the reconcilers of all kinds to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Scraper == nil {
		o.Scraper = NewHTTPScraper(desired.StatusPort)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return errors.Join(setup(mgr, o, relays()), setup(mgr, o, consumers()))
}

// setup adds the reconciler of a kind: it watches the kind, the objects made for it and, by the label that names the
// resource, its Pods.
func setup[R client.Object, S any](mgr ctrl.Manager, o Options, k kind[R, S]) error {
	r := &reconciler[R, S]{
		Options: o, kind: k,
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder(FieldOwner),
	}
	err := ctrl.NewControllerManagedBy(mgr).
		For(k.empty(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.ServiceAccount{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		Owns(&appsv1.Deployment{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(byLabel(k.label))).
		// ReplicaSets are only read; what they do shows in Deployments and Pods.
		Watches(&appsv1.ReplicaSet{}, handler.EnqueueRequestsFromMapFunc(byLabel(k.label)), builder.WithPredicates(never())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: o.Concurrency, ReconciliationTimeout: passTimeout,
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up %s: %w", k.name, err)
	}
	return nil
}

func never() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(client.Object) bool { return false })
}

// byLabel finds the resource of a Pod. Whether the Pod is really its own, the pass decides.
func byLabel(label string) handler.MapFunc {
	return func(_ context.Context, pod client.Object) []reconcile.Request {
		name := pod.GetLabels()[label]
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: pod.GetNamespace(), Name: name}}}
	}
}

// permit checks what the schema cannot know: what this operator allows.
func (o Options) permit(insecure []string, workload *v1alpha1.Workload) error {
	if len(insecure) > 0 && !o.AllowInsecureTransport {
		return &invalidError{
			reason: v1alpha1.ReasonInsecureTransportNotAllowed,
			message: insecure[0] + ".mode is Insecure, which this operator does not allow: choose VerifyFull, " +
				"or run the manager with --allow-insecure-transport",
		}
	}
	if class := workload.PriorityClassName; class != "" && !slices.Contains(o.PriorityClasses, class) {
		return &invalidError{
			reason: v1alpha1.ReasonPriorityClassNotAllowed,
			message: "spec.workload.priorityClassName is " + class + ", which this operator does not allow: " +
				"leave it out, or name it in the manager's --priority-classes",
		}
	}
	return nil
}
