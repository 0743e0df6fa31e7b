package status

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// Kind computes the statuses of one kind of resource: Relays or Consumers. S is the status of the kind.
type Kind[S any] struct {
	// needs are the conditions without which a resource is not Ready, in the order in which a person should look.
	needs []string
	// count adds up what the workers count.
	count func([]statusz.Report) S
	// work reads from a status what there is to do, figures what moves by itself; the rest is what is left.
	work    func(S) work
	figures func(S) (rest S, f figures)
	// common and dead find the parts that all kinds have.
	common func(*S) *v1alpha1.WorkerStatus
	dead   func(S) *v1alpha1.DeadLetterCount
}

// Compute adds up the reports of a resource's workers. Of the status before only the times of its transitions stay.
func (k Kind[S]) Compute(before S, f Facts, reports []statusz.Report) S {
	after := k.count(reports)
	*k.common(&after) = worker(*k.common(&before), f, reports, k.needs,
		backlogHealthy(f, k.work(after)), deadLettersHealthy(f, k.dead(after)))
	return after
}

// Slow says whether the workers are too slow for what there is to do, as far as one look can tell.
func (k Kind[S]) Slow(reports []statusz.Report) bool { return k.work(k.count(reports)).slow() }

// News says whether a status is worth writing over the stored one: something that a person would act on has changed.
// last, nil if this is no new look, is the status of the look before: what has come to rest is written as it is, once.
func (k Kind[S]) News(stored S, last *S, now S, f Facts) bool {
	storedRest, was := k.figures(stored)
	rest, is := k.figures(now)
	if !equality.Semantic.DeepEqual(storedRest, rest) || is.news(was, f) {
		return true
	}
	if last == nil {
		return false
	}
	return k.same(*last, now) && !k.same(stored, now)
}

// Summary is what a monitor shows of a status. What nobody knows is nil.
type Summary struct {
	// Ready is the state of the condition.
	Ready metav1.ConditionStatus
	// Messages wait, the oldest since Oldest.
	Messages *int64
	Oldest   *metav1.Time
	// DeadLetters are open.
	DeadLetters *int64
	// Observed is when the numbers were taken.
	Observed *metav1.Time
}

// Summarize reads the summary from a status.
func (k Kind[S]) Summarize(s S) Summary {
	common := k.common(&s)
	_, f := k.figures(s)
	out := Summary{Messages: f.passing, Observed: common.ObservedTime}
	if len(f.oldest) > 0 && f.passing != nil {
		out.Oldest = f.oldest[0]
	}
	if dead := k.dead(s); dead != nil {
		out.DeadLetters = dead.Open
	}
	if c := meta.FindStatusCondition(common.Conditions, v1alpha1.ConditionReady); c != nil {
		out.Ready = c.Status
	}
	return out
}

// same compares statuses but for the time at which they were taken.
func (k Kind[S]) same(a, b S) bool { // copies: the callers' statuses keep their times
	k.common(&a).ObservedTime, k.common(&b).ObservedTime = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}
