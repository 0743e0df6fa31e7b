package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// Consumers computes the statuses of consumers. What a worker reads from the broker or the database is the whole
// consumer's, so one worker's word on it is enough; what it counts itself is its own share.
func Consumers() Kind[v1alpha1.InboxConsumerStatus] {
	return Kind[v1alpha1.InboxConsumerStatus]{
		needs: []string{
			v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady, v1alpha1.ConditionSourceReachable,
		},
		count: consumerCounts, work: consumerWork, figures: consumerFigures,
		common: func(s *v1alpha1.InboxConsumerStatus) *v1alpha1.WorkerStatus { return &s.WorkerStatus },
		dead:   func(s v1alpha1.InboxConsumerStatus) *v1alpha1.DeadLetterCount { return s.DeadLetters },
	}
}

func consumerWork(s v1alpha1.InboxConsumerStatus) work {
	var w work
	if s.Lag != nil {
		w.messages = s.Lag.Messages
	}
	if s.Rates != nil {
		w.perSecond = s.Rates.AppliedPerSecond
	}
	return w
}

// consumerCounts adds up what the workers count.
func consumerCounts(reports []statusz.Report) v1alpha1.InboxConsumerStatus {
	reports, _ = split(reports)
	var after v1alpha1.InboxConsumerStatus
	for i := range reports {
		c := reports[i].Consumer
		if c == nil {
			continue
		}
		if after.Inbox == nil {
			after.Inbox = &v1alpha1.InboxStatus{}
		}
		after.Source = c.Source
		after.LastAppliedTime = later(after.LastAppliedTime, c.LastAppliedTime)
		after.Inbox.Processed = add(after.Inbox.Processed, c.AppliedTotal)
		after.Inbox.Duplicates = add(after.Inbox.Duplicates, c.DuplicatesTotal)
		after.Inbox.Parked = known(after.Inbox.Parked, c.Parked)
		after.Inbox.Gaps = known(after.Inbox.Gaps, c.Gaps)
		after.Inbox.BlockedKeys = known(after.Inbox.BlockedKeys, c.BlockedKeys)
		if c.DeadLetters != nil {
			after.DeadLetters = deadLetters(c.DeadLetters)
		}
		if c.AppliedPerSec != nil {
			if after.Rates == nil {
				after.Rates = &v1alpha1.ConsumerRates{}
			}
			after.Rates.AppliedPerSecond = add(after.Rates.AppliedPerSecond, *c.AppliedPerSec)
		}
		if c.Lag != nil {
			after.Lag = lag(after.Lag, c.Lag)
		}
	}
	return after
}

// lag is the newer count with the earliest time: of Kafka a worker knows the time of its own partitions only.
func lag(before *v1alpha1.Lag, newer *statusz.Lag) *v1alpha1.Lag {
	messages := newer.Messages
	after := &v1alpha1.Lag{Messages: &messages}
	if messages > 0 {
		var oldest *metav1.Time
		if before != nil {
			oldest = before.OldestMessageTime
		}
		after.OldestMessageTime = earlier(oldest, newer.OldestMessageTime)
	}
	return after
}

// known returns the newer word where there is one.
func known(before, newer *int64) *int64 {
	if newer == nil {
		return before
	}
	n := *newer
	return &n
}

// consumerFigures takes the figures out of a status.
func consumerFigures(s v1alpha1.InboxConsumerStatus) (v1alpha1.InboxConsumerStatus, figures) {
	rest := *s.DeepCopy()
	rest.ObservedTime, rest.LastAppliedTime = nil, nil
	var f figures
	if s.Lag != nil {
		f.passing = s.Lag.Messages
		f.oldest = []*metav1.Time{s.Lag.OldestMessageTime}
		rest.Lag = &v1alpha1.Lag{}
	}
	if i := s.Inbox; i != nil {
		f.counts = []*int64{i.Parked, i.Gaps, i.BlockedKeys, i.Processed, i.Duplicates}
		rest.Inbox = &v1alpha1.InboxStatus{}
	}
	f.addDeadLetters(s.DeadLetters, &rest.DeadLetters)
	if r := s.Rates; r != nil {
		f.rates = []*int64{r.AppliedPerSecond}
		rest.Rates = &v1alpha1.ConsumerRates{}
	}
	return rest, f
}
