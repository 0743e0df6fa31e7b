package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// announce makes an event when a resource becomes ready, is so no more, or stops for a person.
func (r *reconciler[R, S]) announce(resource client.Object, before, after []metav1.Condition) {
	tell := func(kind, reason, message string) {
		r.recorder.Eventf(resource, nil, kind, reason, "Reconcile", "%s", message)
	}
	was := meta.FindStatusCondition(before, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(after, v1alpha1.ConditionReady)
	stalled := meta.FindStatusCondition(after, v1alpha1.ConditionStalled)
	switch {
	case stalled != nil && meta.FindStatusCondition(before, v1alpha1.ConditionStalled) == nil:
		tell(corev1.EventTypeWarning, stalled.Reason, stalled.Message)
	case is == nil || (was != nil && was.Status == is.Status):
	case is.Status == metav1.ConditionTrue:
		tell(corev1.EventTypeNormal, is.Reason, "The workers run as they should")
	case was != nil && was.Status == metav1.ConditionTrue:
		tell(corev1.EventTypeWarning, is.Reason, is.Message)
	}
}
