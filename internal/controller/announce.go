package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// announce makes an event when a resource becomes ready, is so no more, or stops for a person.
func (p *plane[S]) announce(resource client.Object, before, after []metav1.Condition) {
	is, was := meta.FindStatusCondition(
		after,
		v1alpha1.ConditionReady,
	), meta.FindStatusCondition(
		before,
		v1alpha1.ConditionReady,
	)
	stalled := meta.FindStatusCondition(after, v1alpha1.ConditionStalled)
	switch {
	case stalled != nil && meta.FindStatusCondition(before, v1alpha1.ConditionStalled) == nil:
		p.recorder.Eventf(resource, nil, corev1.EventTypeWarning, stalled.Reason, "Reconcile", "%s", stalled.Message)
	case is == nil || (was != nil && was.Status == is.Status):
	case is.Status == metav1.ConditionTrue:
		p.recorder.Eventf(
			resource,
			nil,
			corev1.EventTypeNormal,
			is.Reason,
			"Reconcile",
			"The workers run as they should",
		)
	case was != nil && was.Status == metav1.ConditionTrue:
		p.recorder.Eventf(resource, nil, corev1.EventTypeWarning, is.Reason, "Reconcile", "%s", is.Message)
	}
}
