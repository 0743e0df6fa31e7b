package status

import (
	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// consumerNeeds are the conditions without which a consumer is not Ready.
var consumerNeeds = []string{
	v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady, v1alpha1.ConditionSourceReachable,
}

// Consumer adds up the reports of a consumer's workers. What a worker reads from the broker or the database is the
// whole consumer's, so one worker's word on it is enough; what it counts itself is its own share.
func Consumer(before v1alpha1.InboxConsumerStatus, f Facts, reports []statusz.Report) v1alpha1.InboxConsumerStatus {
	after := consumerCounts(reports)
	after.WorkerStatus = worker(before.WorkerStatus, f, reports, consumerNeeds,
		backlogHealthy(f, consumerWork(after)), deadLettersHealthy(f, after.DeadLetters))
	return after
}

// ConsumerSlow says whether the workers of a consumer are too slow for its lag, as far as one look can tell.
func ConsumerSlow(reports []statusz.Report) bool { return consumerWork(consumerCounts(reports)).slow() }

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
			messages := c.Lag.Messages
			after.Lag = &v1alpha1.Lag{Messages: &messages, OldestMessageTime: earlier(nil, c.Lag.OldestMessageTime)}
		}
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
