package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// What the operator may do, for all kinds. There is no verb on secrets, none on pods beyond reading, and no way to
// give rights to anybody: a test compares config/rbac/role.yaml with the whole list.
//
// +kubebuilder:rbac:groups="",resources=configmaps;serviceaccounts,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers;outboxrelays,verbs=get;list;watch
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers/finalizers;outboxrelays/finalizers,verbs=update
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers/status;outboxrelays/status,verbs=patch

// reconciler reconciles the resources of one kind. R is a resource of the kind, S its status.
type reconciler[R client.Object, S any] struct {
	Options
	kind   kind[R, S]
	client client.Client
	// live reads from the API server itself, for the few objects that the cache leaves out.
	live     client.Reader
	recorder events.EventRecorder
	memory   memories[S]
}

// Reconcile brings a resource's workload in line with its spec and reports how it stands.
func (r *reconciler[R, S]) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	resource := r.kind.empty()
	if err := r.client.Get(ctx, req.NamespacedName, resource); err != nil {
		return ctrl.Result{}, r.gone(req.NamespacedName, err)
	}
	if !resource.GetDeletionTimestamp().IsZero() {
		return ctrl.Result{}, nil // children go with their owner
	}
	seen, err := r.observe(ctx, resource)
	if err == nil {
		err = r.apply(ctx, resource, seen)
	}
	return r.report(ctx, resource, seen, err)
}

// gone forgets a resource that is no more.
func (r *reconciler[R, S]) gone(key types.NamespacedName, err error) error {
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the resource: %w", err)
	}
	r.memory.forget(key)
	r.Gauges.forget(r.kind.name, key)
	return nil
}

// apply sends what the resource needs and the API server does not have yet.
func (r *reconciler[R, S]) apply(ctx context.Context, resource R, seen *observed) error {
	of := r.kind.parts(resource)
	if err := r.permit(of.insecure, of.workload); err != nil {
		return err
	}
	workload, err := r.kind.workload(resource, r.Settings)
	if err != nil {
		return &invalidError{reason: v1alpha1.ReasonInvalidSpec, message: shorten(err.Error(), maxErrorText)}
	}
	return r.applyWorkload(ctx, workload, seen)
}

// report computes the status and writes it if something in it is news.
func (r *reconciler[R, S]) report(
	ctx context.Context, resource R, seen *observed, stepErr error,
) (ctrl.Result, error) {
	l := r.look(ctx, resource, seen)
	facts := r.facts(resource, seen, l, stepErr)
	before := resource.DeepCopyObject().(R) // of the type of the original
	stored, now := r.kind.parts(before), r.kind.parts(resource)
	*now.status = r.kind.rules.Compute(*stored.status, facts, l.reports)
	if r.kind.rules.News(*stored.status, l.last, *now.status, facts) {
		if err := r.client.Status().Patch(ctx, resource, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, errors.Join(stepErr, fmt.Errorf("write status: %w", err))
		}
		r.announce(resource, stored.common.Conditions, now.common.Conditions)
	}
	l.remember(*now.status)
	r.Gauges.show(r.kind.name, client.ObjectKeyFromObject(resource), r.kind.rules.Summarize(*now.status))
	return resultFor(stepErr, l.next)
}
