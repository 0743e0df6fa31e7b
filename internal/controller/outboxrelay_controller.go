package controller

import (
	"context"
	"errors"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/status"
)

// OutboxRelayReconciler reconciles the resources of kind OutboxRelay.
type OutboxRelayReconciler struct {
	*plane[v1alpha1.OutboxRelayStatus]
}

func setupRelays(mgr ctrl.Manager, o Options) error {
	r := &OutboxRelayReconciler{newPlane[v1alpha1.OutboxRelayStatus](mgr, o)}
	if err := setup(mgr, o, &v1alpha1.OutboxRelay{}, desired.LabelRelay, r); err != nil {
		return fmt.Errorf("set up %s: %w", v1alpha1.KindOutboxRelay, err)
	}
	return nil
}

// What the operator may do, for both kinds. There is no verb on secrets, none on pods beyond reading, and no way to
// give rights to anybody: a test compares config/rbac/role.yaml with the whole list.
//
// +kubebuilder:rbac:groups="",resources=configmaps;serviceaccounts,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=create;get;list;patch;watch
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers;outboxrelays,verbs=get;list;watch
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers/finalizers;outboxrelays/finalizers,verbs=update
// +kubebuilder:rbac:groups=postrider.dev,resources=inboxconsumers/status;outboxrelays/status,verbs=patch

// Reconcile brings a relay's workload in line with its spec and reports how it stands.
func (r *OutboxRelayReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	relay := &v1alpha1.OutboxRelay{}
	if err := r.client.Get(ctx, req.NamespacedName, relay); err != nil {
		return r.gone(req.NamespacedName, err)
	}
	if !relay.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // children go with their owner
	}
	seen, err := r.observe(ctx, relay, desired.RelayName(relay.Name), desired.RelaySelector(relay.Name))
	if err == nil {
		err = r.apply(ctx, relay, seen)
	}
	return r.report(ctx, relay, seen, err)
}

// apply sends what the relay needs and the API server does not have yet.
func (r *OutboxRelayReconciler) apply(ctx context.Context, relay *v1alpha1.OutboxRelay, seen *observed) error {
	if err := r.permit(desired.InsecureTransports(relay), &relay.Spec.Workload); err != nil {
		return err
	}
	workload, err := desired.RelayWorkload(relay, r.Settings)
	if err != nil {
		return &invalidError{reason: v1alpha1.ReasonInvalidSpec, message: shorten(err.Error(), maxErrorText)}
	}
	return r.applyWorkload(ctx, workload, seen)
}

// report computes the status and writes it if something in it is news.
func (r *OutboxRelayReconciler) report(
	ctx context.Context, relay *v1alpha1.OutboxRelay, seen *observed, stepErr error,
) (ctrl.Result, error) {
	l := r.look(ctx, relay, seen, relay.Spec.StatusInterval, status.RelaySlow)
	facts := r.facts(relay, seen, l, relay.Spec.Replicas, stepErr)
	before := relay.DeepCopy()
	relay.Status = status.Relay(before.Status, facts, l.reports)
	if status.RelayNews(before.Status, l.last, relay.Status, facts) {
		if err := r.client.Status().Patch(ctx, relay, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, errors.Join(stepErr, fmt.Errorf("write status: %w", err))
		}
		r.announce(relay, before.Status.Conditions, relay.Status.Conditions)
	}
	l.remember(relay.Status)
	return resultFor(stepErr, l.next)
}
