package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
)

// targetDrainTime is how long working off a backlog may take before the resource says so.
const targetDrainTime = time.Minute

// work is what there is to do and how fast it is done.
type work struct {
	// messages is what is to be done; nil while nobody knows.
	messages *int64
	// waiting is the part of it that no worker could do now: it waits for a retry or for a person.
	waiting int64
	// perSecond is how fast it is done; nil while nobody knows.
	perSecond *int64
}

// known says whether one can tell.
func (w work) known() bool {
	return w.messages != nil && (*w.messages-w.waiting <= 0 || w.perSecond != nil)
}

// slow says whether it would take longer than it should.
func (w work) slow() bool {
	if !w.known() {
		return false
	}
	todo := *w.messages - w.waiting
	return todo > 0 && todo > *w.perSecond*int64(targetDrainTime/time.Second)
}

// backlogHealthy says whether the workers keep up. One slow look is no news: a burst looks the same.
func backlogHealthy(f Facts, w work) metav1.Condition {
	c := unheard(v1alpha1.ConditionBacklogHealthy, f)
	switch {
	case !w.known():
	case f.SlowFor > 0 && f.SlowFor >= patience*f.Interval:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonDrainTooSlow
		c.Message = "At this rate the messages that wait need more than " + targetDrainTime.String()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonWithinBounds, ""
	}
	return c
}

// value reads a number that may be absent.
func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
