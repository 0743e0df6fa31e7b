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

// InboxConsumerReconciler reconciles the resources of kind InboxConsumer.
type InboxConsumerReconciler struct {
	*plane[v1alpha1.InboxConsumerStatus]
}

func setupConsumers(mgr ctrl.Manager, o Options) error {
	r := &InboxConsumerReconciler{newPlane[v1alpha1.InboxConsumerStatus](mgr, o)}
	if err := setup(mgr, o, &v1alpha1.InboxConsumer{}, desired.LabelConsumer, r); err != nil {
		return fmt.Errorf("set up %s: %w", v1alpha1.KindInboxConsumer, err)
	}
	return nil
}

// Reconcile brings a consumer's workload in line with its spec and reports how it stands.
func (r *InboxConsumerReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	consumer := &v1alpha1.InboxConsumer{}
	if err := r.client.Get(ctx, req.NamespacedName, consumer); err != nil {
		return r.gone(req.NamespacedName, err)
	}
	if !consumer.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // children go with their owner
	}
	seen, err := r.observe(ctx, consumer, desired.ConsumerName(consumer.Name), desired.ConsumerSelector(consumer.Name))
	if err == nil {
		err = r.apply(ctx, consumer, seen)
	}
	return r.report(ctx, consumer, seen, err)
}

// apply sends what the consumer needs and the API server does not have yet.
func (r *InboxConsumerReconciler) apply(ctx context.Context, consumer *v1alpha1.InboxConsumer, seen *observed) error {
	if err := r.permit(desired.InsecureConsumerTransports(consumer), &consumer.Spec.Workload); err != nil {
		return err
	}
	workload, err := desired.ConsumerWorkload(consumer, r.Settings)
	if err != nil {
		return &invalidError{reason: v1alpha1.ReasonInvalidSpec, message: shorten(err.Error(), maxErrorText)}
	}
	return r.applyWorkload(ctx, workload, seen)
}

// report computes the status and writes it if something in it is news.
func (r *InboxConsumerReconciler) report(
	ctx context.Context, consumer *v1alpha1.InboxConsumer, seen *observed, stepErr error,
) (ctrl.Result, error) {
	l := r.look(ctx, consumer, seen, consumer.Spec.StatusInterval, status.ConsumerSlow)
	facts := r.facts(consumer, seen, l, consumer.Spec.Replicas, stepErr)
	before := consumer.DeepCopy()
	consumer.Status = status.Consumer(before.Status, facts, l.reports)
	if status.ConsumerNews(before.Status, l.last, consumer.Status, facts) {
		if err := r.client.Status().Patch(ctx, consumer, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, errors.Join(stepErr, fmt.Errorf("write status: %w", err))
		}
		r.announce(consumer, before.Status.Conditions, consumer.Status.Conditions)
	}
	l.remember(consumer.Status)
	return resultFor(stepErr, l.next)
}
