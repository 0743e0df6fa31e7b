// Package status adds up what workers report into the status of their resource: the one set of rules that
// the manager writes to the API server and `postrider up` shows on a laptop.
//
// It is pure. A status is computed whole from the reports; of the one before only the times of its conditions'
// transitions are kept. A number that a worker does not know is absent from the sum, never 0.
package status

import (
	"cmp"
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
	// Running is how many are there, ready or not; nil where nobody counts them apart, as outside a cluster.
	Running *int32
	// Selector selects the workers' Pods; empty outside a cluster.
	Selector string
	// Interval is the time between two looks.
	Interval time.Duration
	// Stalled is why nothing will be done before a person changes something.
	Stalled *Problem
	// Conflict names the objects that are not ours and have the names of ours.
	Conflict string
	// Failed is what could not be done just now and is being repeated.
	Failed *Problem
	// Rollout says what of a change is still under way; empty when all workers are the ones that should run.
	Rollout string
	// Waiting says why workers that should run do not start.
	Waiting string
	// Silent is how many workers are there and did not report.
	Silent int32
	// Stale says that the workers that did not report have done so, three intervals ago or more.
	Stale bool
	// SlowFor is how long the workers have been too slow for what there is to do.
	SlowFor time.Duration
	// Now is the time of the look.
	Now time.Time
}

// Problem is something that is wrong, with a reason of the API and what to do.
type Problem struct{ Reason, Message string }

// patience is how many looks in a row something must be seen before it counts, or go unseen before it is forgotten.
const patience = 3

// StaleAfter returns how old a report may be.
func StaleAfter(interval time.Duration) time.Duration { return patience * interval }

// presentWhileTrue are the conditions that warn, and are left out otherwise.
var presentWhileTrue = []string{
	v1alpha1.ConditionInsecureTransport,
	v1alpha1.ConditionTableInUse,
	v1alpha1.ConditionConsumerNameInUse,
	v1alpha1.ConditionRetryingAmbiguous,
	v1alpha1.ConditionDeadLetterUnavailable,
	v1alpha1.ConditionTargetMayDiscard,
	v1alpha1.ConditionPartitionCountChanged,
	v1alpha1.ConditionNonDurableDatabase,
	v1alpha1.ConditionPublishSlow,
	v1alpha1.ConditionClockWentBack,
	v1alpha1.ConditionVacuumBlocked,
	v1alpha1.ConditionCertificateExpiring,
	v1alpha1.ConditionNotifyUnavailable,
}

// PresentWhileTrue says whether a condition of that type warns while it is True, and is left out otherwise.
func PresentWhileTrue(conditionType string) bool {
	return slices.Contains(presentWhileTrue, conditionType)
}

// stopping are the warnings under which nothing moves.
var stopping = []string{v1alpha1.ConditionTableInUse, v1alpha1.ConditionConsumerNameInUse}

// worker computes the part that both kinds share. needed are the conditions, in the order in which a person should
// look at them, that must be True for Ready; healthy are those that may be False all the same.
func worker(before v1alpha1.WorkerStatus, f Facts, reports []statusz.Report, needed []string,
	healthy ...metav1.Condition,
) v1alpha1.WorkerStatus {
	after := v1alpha1.WorkerStatus{
		ObservedGeneration: f.Generation, Selector: f.Selector, Replicas: f.Running, ReadyReplicas: &f.Ready,
	}
	if f.Running == nil {
		after.Replicas = &f.Replicas
	}
	if len(reports) > 0 {
		after.ObservedTime = observedTime(reports, f.Now)
	}
	workers, steps := split(reports)
	var parts []metav1.Condition
	for _, name := range needed {
		parts = append(parts, needs(name, f, workers, steps))
	}
	parts = append(parts, workloadAvailable(f)) // last: a database that is down is the cause, its worker not ready
	warnings := warningsOf(f, reports)
	state := ready(f, workers, parts, warnings)
	state.Message = cmp.Or(state.Message, trouble(state, healthy))
	wanted := append([]metav1.Condition{state, referencesResolved(f, reports, parts)}, parts...)
	wanted = append(wanted, healthy...)
	wanted = append(wanted, progress(f, state, warnings)...)
	wanted = append(wanted, warnings...)

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

// trouble is what somebody should look at though messages move: the table of kubectl shows no other message than Ready's.
func trouble(state metav1.Condition, healthy []metav1.Condition) string {
	if state.Status != metav1.ConditionTrue {
		return ""
	}
	for _, c := range healthy {
		if c.Status == metav1.ConditionFalse {
			return c.Message
		}
	}
	return ""
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
	if f.Waiting != "" {
		c.Message += ": " + f.Waiting
	}
	return c
}

// unheard is a condition of which no worker has spoken.
func unheard(name string, f Facts) metav1.Condition {
	c := metav1.Condition{
		Type: name, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotReported,
		Message: "No worker has reported yet",
	}
	switch {
	case f.Replicas == 0:
		c.Reason, c.Message = v1alpha1.ReasonScaledToZero, "No worker runs: replicas is 0"
	case f.Stale:
		c.Reason, c.Message = v1alpha1.ReasonStatusStale, "No worker has reported for three status intervals"
	}
	return c
}

// split parts the reports of workers from those of steps before a worker.
func split(reports []statusz.Report) (workers, steps []statusz.Report) {
	for i := range reports {
		if reports[i].Step == "" {
			workers = append(workers, reports[i])
		} else {
			steps = append(steps, reports[i])
		}
	}
	return workers, steps
}

// needs returns the worst that any worker reports of a condition: False before Unknown before True. A step before a
// worker is heard where it cannot go on; what it does not know is no news while there are workers.
func needs(name string, f Facts, workers, steps []statusz.Report) metav1.Condition {
	for i := range steps {
		c := find(steps[i].Conditions, name)
		if c != nil && c.Status == string(metav1.ConditionFalse) {
			return metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: c.Reason, Message: c.Message}
		}
	}
	reports := workers
	if len(workers) == 0 {
		reports = steps
	}
	worst := unheard(name, f)
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

// referencesResolved says whether the workers found the files that their config names: nobody else looks at Secrets.
func referencesResolved(f Facts, reports []statusz.Report, parts []metav1.Condition) metav1.Condition {
	c := unheard(v1alpha1.ConditionReferencesResolved, f)
	if len(reports) == 0 {
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonResolved, ""
	for _, p := range parts {
		switch p.Reason {
		case v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonConfigMapNotFound:
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, p.Reason, p.Message
			return c
		case v1alpha1.ReasonStarting:
			c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonStarting
		}
	}
	return c
}

// warningsOf returns the warnings that any worker gives, and ours.
func warningsOf(f Facts, reports []statusz.Report) []metav1.Condition {
	var warnings []metav1.Condition
	if f.Conflict != "" {
		warnings = append(warnings, metav1.Condition{
			Type: v1alpha1.ConditionNameConflict, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInUse,
			Message: f.Conflict,
		})
	}
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

// progress returns what tools that wait for a resource read: whether it is on its way, or stuck.
func progress(f Facts, ready metav1.Condition, warnings []metav1.Condition) []metav1.Condition {
	stalled := metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}
	if f.Stalled != nil {
		stalled.Reason, stalled.Message = f.Stalled.Reason, f.Stalled.Message
		return []metav1.Condition{stalled}
	}
	for _, w := range warnings {
		if slices.Contains(stopping, w.Type) {
			stalled.Reason, stalled.Message = w.Type, w.Message
			return []metav1.Condition{stalled}
		}
	}
	message := f.Rollout
	if message == "" && ready.Reason == v1alpha1.ReasonProgressing {
		message = ready.Message
	}
	if message == "" {
		return nil
	}
	return []metav1.Condition{{
		Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgressing,
		Message: message,
	}}
}

// deadLettersHealthy says whether dead letters wait for a person.
func deadLettersHealthy(f Facts, dead *v1alpha1.DeadLetterCount) metav1.Condition {
	c := unheard(v1alpha1.ConditionDeadLettersHealthy, f)
	switch {
	case dead == nil:
	case *dead.Open == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonWithinBounds, ""
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonOpenDeadLetters
		c.Message = fmt.Sprintf("%d dead letters are open", *dead.Open)
		if *dead.Open == 1 {
			c.Message = "1 dead letter is open"
		}
		c.Message += ": postrider dead-letters list says why"
	}
	return c
}

// ready sums up: the first thing that a person should look at gives the reason.
func ready(f Facts, reports []statusz.Report, parts, warnings []metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	if p := blocking(f, reports, warnings); p != nil {
		c.Reason, c.Message = p.Reason, p.Message
		return c
	}
	if f.Replicas == 0 {
		c.Reason, c.Message = v1alpha1.ReasonScaledToZero, "replicas is 0: nothing moves until it is 1 or more"
		return c
	}
	for _, p := range certainFirst(parts) {
		if p.Type == v1alpha1.ConditionWorkloadAvailable && f.Rollout != "" && f.Waiting == "" {
			break // what is under way says more than a number
		}
		if p.Status != metav1.ConditionTrue {
			c.Status, c.Reason, c.Message = p.Status, p.Reason, p.Message
			return c
		}
	}
	switch {
	case f.Rollout != "":
		c.Reason, c.Message = v1alpha1.ReasonProgressing, f.Rollout
		return c
	case f.Silent > 0:
		c = unheard(v1alpha1.ConditionReady, f)
		c.Message = fmt.Sprintf("%d of %d workers do not report: the manager must reach them", f.Silent, f.Ready)
		return c
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

// certainFirst puts what is known to be wrong before what is not known: a step before a worker speaks of little else.
// That workers are not ready stays last: it is a consequence.
func certainFirst(parts []metav1.Condition) []metav1.Condition {
	rank := func(c metav1.Condition) int {
		switch {
		case c.Type == v1alpha1.ConditionWorkloadAvailable:
			return 2
		case c.Status == metav1.ConditionFalse:
			return 0
		default:
			return 1
		}
	}
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, func(a, b metav1.Condition) int { return rank(a) - rank(b) })
	return parts
}

// blocking returns what makes a resource not ready, whatever its workers reach.
func blocking(f Facts, reports []statusz.Report, warnings []metav1.Condition) *Problem {
	switch {
	case f.Stalled != nil:
		return f.Stalled
	case f.Failed != nil:
		return f.Failed
	case len(reports) == 0 && f.Waiting != "": // nobody else says why
		return &Problem{Reason: v1alpha1.ReasonUnavailable, Message: f.Waiting}
	}
	for i := range reports {
		if e := reports[i].ConfigError; e != "" {
			return &Problem{Reason: v1alpha1.ReasonInvalidConfig, Message: e}
		}
		if g := reports[i].Generation; g != f.Generation {
			return &Problem{
				Reason:  v1alpha1.ReasonProgressing,
				Message: fmt.Sprintf("A worker still runs generation %d", g),
			}
		}
	}
	for _, w := range warnings {
		if slices.Contains(stopping, w.Type) {
			return &Problem{Reason: w.Type, Message: w.Message}
		}
	}
	return nil
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
	return seconds(oldest)
}

// seconds is a time as a status keeps it: what is read back equals what was written.
func seconds(t time.Time) *metav1.Time { return &metav1.Time{Time: t.Truncate(time.Second)} }

// earlier returns the earlier of two times, either of which may be absent.
func earlier(a *metav1.Time, b *time.Time) *metav1.Time {
	if b == nil || (a != nil && a.Time.Before(*b)) {
		return a
	}
	return seconds(*b)
}

// later returns the later of two times, either of which may be absent.
func later(a *metav1.Time, b *time.Time) *metav1.Time {
	if b == nil || (a != nil && a.Time.After(*b)) {
		return a
	}
	return seconds(*b)
}

// add adds to a sum that may be absent.
func add(sum *int64, n int64) *int64 {
	if sum != nil {
		n += *sum
	}
	return &n
}
