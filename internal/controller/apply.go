package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/internal/desired"
)

// configuration is an apply configuration of type C.
type configuration[C any] interface {
	runtime.ApplyConfiguration
	WithUID(uid types.UID) C
}

// applyWorkload applies what differs from what we own of each object. The config comes before the Pods that read it.
func (r *reconciler[R, S]) applyWorkload(ctx context.Context, w desired.Workload, seen *observed) error {
	if _, err := applyChild(ctx, r.client, w.ServiceAccount, seen.serviceAccount, seen.serviceAccount != nil,
		corev1ac.ExtractServiceAccount); err != nil {
		return err
	}
	if _, err := applyChild(ctx, r.client, w.ConfigMap, seen.configMap, seen.configMap != nil,
		corev1ac.ExtractConfigMap); err != nil {
		return err
	}
	if _, err := applyChild(ctx, r.client, w.PodDisruptionBudget, seen.budget, seen.budget != nil,
		policyv1ac.ExtractPodDisruptionBudget); err != nil {
		return err
	}
	if w.NetworkPolicy != nil {
		if _, err := applyChild(ctx, r.client, w.NetworkPolicy, seen.network, seen.network != nil,
			networkingv1ac.ExtractNetworkPolicy); err != nil {
			return err
		}
	}
	if w.Deployment.Spec.Replicas == nil {
		if err := r.leaveReplicas(ctx, w.Deployment, seen.deployment); err != nil {
			return err
		}
	}
	applied, err := applyChild(ctx, r.client, w.Deployment, seen.deployment, seen.deployment != nil,
		appsv1ac.ExtractDeployment)
	seen.rolling = applied
	return err
}

// applyChild sends an object unless all that we want of it is there and ours. It says whether it sent anything.
//
// An object that is there is sent with its UID, so that one of the same name made meanwhile by somebody else is
// refused and not changed.
func applyChild[O client.Object, C configuration[C]](
	ctx context.Context, c client.Client, want C, have O, found bool, extract func(O, string) (C, error),
) (bool, error) {
	if found {
		owned, err := extract(have, FieldOwner)
		if err != nil {
			return false, fmt.Errorf("read what is ours of %s %s: %w", kindOf(have), have.GetName(), err)
		}
		if equality.Semantic.DeepEqual(owned, want) {
			return false, nil
		}
		want = want.WithUID(have.GetUID())
	}
	if err := c.Apply(ctx, want, client.ForceOwnership); err != nil {
		return false, fmt.Errorf("apply %s: %w", kindOf(have), err)
	}
	log.FromContext(ctx).Info("Applied", "child", kindOf(have), "created", !found)
	return true, nil
}

// leaveReplicas lets go of the number of Pods of a resource that names none: it is made with a number, which then
// belongs to whoever scales the Deployment. A field that its last owner drops would be reset, so it is handed to an
// owner that never speaks again.
func (r *reconciler[R, S]) leaveReplicas(
	ctx context.Context, want *appsv1ac.DeploymentApplyConfiguration, have *appsv1.Deployment,
) error {
	if have == nil {
		want.Spec.WithReplicas(desired.DefaultReplicas)
		return nil
	}
	owned, err := appsv1ac.ExtractDeployment(have, FieldOwner)
	if err != nil {
		return fmt.Errorf("read what is ours of the Deployment: %w", err)
	}
	if owned.Spec == nil || owned.Spec.Replicas == nil {
		return nil
	}
	err = r.client.Apply(ctx, desired.Replicas(have.Namespace, have.Name, *owned.Spec.Replicas).WithUID(have.UID),
		client.FieldOwner(ReplicasOwner))
	if apierrors.IsConflict(err) {
		return nil // somebody else has them already
	}
	if err != nil {
		return fmt.Errorf("leave the replicas to whoever scales: %w", err)
	}
	return nil
}
