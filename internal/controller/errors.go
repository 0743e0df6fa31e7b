package controller

import (
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
)

// maxErrorText bounds what a condition repeats of an error.
const maxErrorText = 512

// waitError says that something else must happen first, which no watch tells.
type waitError struct {
	message string
	after   time.Duration
}

// Error implements error.
func (e *waitError) Error() string { return e.message }

// invalidError says that a person must change the resource, or what it refers to.
type invalidError struct{ reason, message string }

// Error implements error.
func (e *invalidError) Error() string { return e.message }

// conflictError says that objects which are not ours have the names of ours.
type conflictError struct{ objects []string }

// Error implements error.
func (e *conflictError) Error() string {
	return strings.Join(e.objects, ", ") +
		" exists and was not made for this resource: rename or delete it, or rename the resource"
}

// tell writes into the facts what a step's error means for the status.
func tell(f *status.Facts, err error) {
	var wait *waitError
	var invalid *invalidError
	var conflict *conflictError
	switch {
	case err == nil, raced(err), ending(err):
	case errors.As(err, &wait):
		f.Rollout = wait.message
	case errors.As(err, &invalid):
		f.Stalled = &status.Problem{Reason: invalid.reason, Message: invalid.message}
	case errors.As(err, &conflict):
		f.Conflict = conflict.Error()
		f.Stalled = &status.Problem{Reason: v1alpha1.ConditionNameConflict, Message: f.Conflict}
	case apierrors.IsInvalid(err):
		f.Stalled = &status.Problem{
			Reason:  v1alpha1.ReasonInvalidSpec,
			Message: "Kubernetes refuses what is made of the resource: " + shorten(err.Error(), maxErrorText),
		}
	default:
		f.Failed = &status.Problem{
			Reason:  v1alpha1.ReasonReconcileError,
			Message: "The last pass failed and is repeated: " + shorten(err.Error(), maxErrorText),
		}
	}
}

// resultFor maps a step's error to what the queue should do next. What only a person can mend is no error for the
// queue: the workers of the generation before may still run, so the next look at them is due all the same.
func resultFor(err error, next time.Duration) (ctrl.Result, error) {
	var wait *waitError
	var invalid *invalidError
	var conflict *conflictError
	switch {
	case errors.As(err, &wait):
		return ctrl.Result{RequeueAfter: min(wait.after, next)}, nil
	case err == nil, errors.As(err, &invalid), errors.As(err, &conflict), ending(err), apierrors.IsInvalid(err):
		return ctrl.Result{RequeueAfter: next}, nil
	default:
		return ctrl.Result{}, err
	}
}

// ending says that the namespace is being deleted, and with it the resource: there is nothing left to do.
func ending(err error) bool { return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) }

// raced says that a write met a state that the cache has not shown yet. The next pass sees it.
func raced(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// shorten cuts a text to so many bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "..."
}
