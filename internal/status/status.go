// Package status adds up what workers report into the status of their resource: the one set of rules that
// the manager writes to the API server and `postrider up` shows on a laptop.
//
// It is pure. A status is computed whole from the reports; of the one before only the times of its conditions'
// transitions are kept. A number that a worker does not know is absent from the sum, never 0.
package status

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// Facts are what the reader of the reports knows besides them.
type Facts struct {
	// Generation is that of the spec that the workers should run.
	Generation int64
	// Replicas is how many workers should run, Ready how many are there.
	Replicas, Ready int32
	// Selector selects the workers' Pods; empty outside a cluster.
	Selector string
	// Now is the time of the look.
	Now time.Time
}

// presentWhileTrue are the conditions that warn, and are left out otherwise.
var presentWhileTrue = []string{
	v1alpha1.ConditionInsecureTransport,
	v1alpha1.ConditionTableInUse,
	v1alpha1.ConditionConsumerNameInUse,
	v1alpha1.ConditionRetryingAmbiguous,
	v1alpha1.ConditionDeadLetterUnavailable,
	v1alpha1.ConditionTargetMayDiscard,
}

// stopping are the warnings under which nothing moves.
var stopping = []string{v1alpha1.ConditionTableInUse, v1alpha1.ConditionConsumerNameInUse}

// worker computes the part that both kinds share. needed are the conditions, in the order in which a person should
// look at them, that must be True for Ready.
func worker(before v1alpha1.WorkerStatus, f Facts, reports []statusz.Report, needed []string,
	dead *v1alpha1.DeadLetterCount,
) v1alpha1.WorkerStatus {
	after := v1alpha1.WorkerStatus{
		ObservedGeneration: f.Generation, Selector: f.Selector, Replicas: &f.Replicas, ReadyReplicas: &f.Ready,
	}
	if len(reports) > 0 {
		after.ObservedTime = observedTime(reports, f.Now)
	}
	wanted := []metav1.Condition{workloadAvailable(f)}
	for _, name := range needed {
		wanted = append(wanted, needs(name, reports))
	}
	wanted = append(wanted, deadLettersHealthy(dead))
	warnings := warningsOf(reports)
	wanted = append([]metav1.Condition{ready(f, reports, wanted, warnings)}, append(wanted, warnings...)...)

	conditions := slices.Clone(before.Conditions)
	conditions = slices.DeleteFunc(conditions, func(c metav1.Condition) bool {
		return !slices.ContainsFunc(wanted, func(w metav1.Condition) bool { return w.Type == c.Type })
	})
	for _, c := range wanted {
		c.ObservedGeneration = f.Generation
		c.LastTransitionTime = metav1.NewTime(f.Now)
		meta.SetStatusCondition(&conditions, c)
	}
	after.Conditions = conditions
	return after
}

// workloadAvailable says whether enough workers are there.
func workloadAvailable(f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionWorkloadAvailable}
	if f.Ready >= f.Replicas {
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAvailable
		return c
	}
	c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonUnavailable
	c.Message = fmt.Sprintf("%d of %d workers are ready", f.Ready, f.Replicas)
	return c
}

// needs returns the worst that any worker reports of a condition: False before Unknown before True.
func needs(name string, reports []statusz.Report) metav1.Condition {
	worst := metav1.Condition{
		Type: name, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotReported,
		Message: "No worker has reported yet",
	}
	rank := map[metav1.ConditionStatus]int{
		metav1.ConditionTrue:    0,
		metav1.ConditionUnknown: 1,
		metav1.ConditionFalse:   2,
	}
	found := -1
	for i := range reports {
		c := find(reports[i].Conditions, name)
		if c == nil {
			c = &statusz.Condition{Status: string(metav1.ConditionUnknown), Reason: v1alpha1.ReasonStarting}
		}
		if r := rank[metav1.ConditionStatus(c.Status)]; r > found {
			found = r
			worst.Status, worst.Reason, worst.Message = metav1.ConditionStatus(c.Status), c.Reason, c.Message
		}
	}
	return worst
}

// warningsOf returns the warnings that any worker gives.
func warningsOf(reports []statusz.Report) []metav1.Condition {
	var warnings []metav1.Condition
	for _, name := range presentWhileTrue {
		for i := range reports {
			c := find(reports[i].Conditions, name)
			if c == nil || c.Status != string(metav1.ConditionTrue) {
				continue
			}
			warnings = append(warnings, metav1.Condition{
				Type: name, Status: metav1.ConditionTrue, Reason: c.Reason, Message: c.Message,
			})
			break
		}
	}
	return warnings
}

// deadLettersHealthy says whether dead letters wait for a person.
func deadLettersHealthy(dead *v1alpha1.DeadLetterCount) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDeadLettersHealthy}
	switch {
	case dead == nil:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonNotReported
		c.Message = "No worker has counted the dead letters yet"
	case *dead.Open == 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonWithinBounds
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonOpenDeadLetters
		c.Message = fmt.Sprintf("%d dead letters are open", *dead.Open)
	}
	return c
}

// ready sums up: the first thing that a person should look at gives the reason.
func ready(f Facts, reports []statusz.Report, parts, warnings []metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady}
	if len(reports) == 0 && f.Replicas > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, v1alpha1.ReasonNotReported, "No worker has reported yet"
		return c
	}
	for i := range reports {
		if e := reports[i].ConfigError; e != "" {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalidConfig, e
			return c
		}
		if g := reports[i].Generation; g != f.Generation {
			c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonProgressing
			c.Message = fmt.Sprintf("A worker still runs generation %d", g)
			return c
		}
	}
	for _, w := range warnings {
		if slices.Contains(stopping, w.Type) {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, w.Type, w.Message
			return c
		}
	}
	// Servers before workers: a database that is down is the cause, a worker that is not ready its consequence.
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, func(a, b metav1.Condition) int { return workloadLast(a) - workloadLast(b) })
	for _, p := range parts {
		if p.Status != metav1.ConditionTrue && p.Type != v1alpha1.ConditionDeadLettersHealthy {
			c.Status, c.Reason, c.Message = p.Status, p.Reason, p.Message
			return c
		}
	}
	c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonReady
	if len(reports) > 0 {
		switch v1alpha1.RunPolicy(reports[0].RunPolicy) {
		case v1alpha1.RunPolicyPause:
			c.Reason, c.Message = v1alpha1.ReasonPaused, "runPolicy is Pause: nothing moves until it is Run"
		case v1alpha1.RunPolicyDrain:
			c.Reason, c.Message = v1alpha1.ReasonDrained, "runPolicy is Drain: nothing moves until it is Run"
		default:
		}
	}
	return c
}

func workloadLast(c metav1.Condition) int {
	if c.Type == v1alpha1.ConditionWorkloadAvailable {
		return 1
	}
	return 0
}

func find(conditions []statusz.Condition, name string) *statusz.Condition {
	for i := range conditions {
		if conditions[i].Type == name {
			return &conditions[i]
		}
	}
	return nil
}

// observedTime is the oldest time at which a worker took its counts.
func observedTime(reports []statusz.Report, now time.Time) *metav1.Time {
	oldest := now
	for i := range reports {
		if t := reports[i].ObservedTime; t != nil && t.Before(oldest) {
			oldest = *t
		}
	}
	return &metav1.Time{Time: oldest}
}

// earlier returns the earlier of two times, either of which may be absent.
func earlier(a *metav1.Time, b *time.Time) *metav1.Time {
	if b == nil || (a != nil && a.Time.Before(*b)) {
		return a
	}
	return &metav1.Time{Time: *b}
}

// later returns the later of two times, either of which may be absent.
func later(a *metav1.Time, b *time.Time) *metav1.Time {
	if b == nil || (a != nil && a.Time.After(*b)) {
		return a
	}
	return &metav1.Time{Time: *b}
}

// add adds to a sum that may be absent.
func add(sum *int64, n int64) *int64 {
	if sum != nil {
		n += *sum
	}
	return &n
}
