package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// Relays computes the statuses of relays: each worker counts the shards that it holds.
func Relays() Kind[v1alpha1.OutboxRelayStatus] {
	return Kind[v1alpha1.OutboxRelayStatus]{
		needs: []string{
			v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady, v1alpha1.ConditionBrokerReachable,
		},
		count: relayCounts, work: relayWork, figures: relayFigures,
		common: func(s *v1alpha1.OutboxRelayStatus) *v1alpha1.WorkerStatus { return &s.WorkerStatus },
		dead:   func(s v1alpha1.OutboxRelayStatus) *v1alpha1.DeadLetterCount { return s.DeadLetters },
	}
}

func relayWork(s v1alpha1.OutboxRelayStatus) work {
	var w work
	if s.Backlog != nil {
		w.messages = s.Backlog.Messages
		w.waiting = value(s.Backlog.Retrying) + value(s.Backlog.BlockedMessages)
	}
	if s.Rates != nil {
		w.perSecond = s.Rates.PublishedPerSecond
	}
	return w
}

// relayCounts adds up what the workers count.
func relayCounts(reports []statusz.Report) v1alpha1.OutboxRelayStatus {
	reports, _ = split(reports)
	var after v1alpha1.OutboxRelayStatus
	held := map[int16]bool{}
	var shards int
	counted, arrivals := true, true
	for i := range reports {
		r := reports[i].Relay
		if r == nil {
			counted = false
			continue
		}
		shards = max(shards, r.Shards)
		for _, s := range r.HeldShards {
			held[s] = true
		}
		after.Destination = r.Destination
		after.LastPublishedTime = later(after.LastPublishedTime, r.LastPublishedTime)
		after.Rates = addRates(after.Rates, r)
		arrivals = arrivals && r.ArrivedPerSec != nil
		if r.DeadLetters != nil { // each worker sees all of the relay's
			after.DeadLetters = deadLetters(r.DeadLetters)
		}
		if r.Backlog == nil {
			counted = counted && len(r.HeldShards) == 0
			continue
		}
		after.Backlog = addBacklog(after.Backlog, r.Backlog)
	}
	if !counted {
		after.Backlog = nil // a worker does not know its part, so nobody knows the sum
	}
	if after.Rates != nil && (!arrivals || len(held) < shards) {
		after.Rates.ArrivedPerSecond = nil
	}
	if shards > 0 {
		n := int32(len(held)) //nolint:gosec // at most the 64 shards of a table
		after.Lease = &v1alpha1.LeaseStatus{Shards: int32(shards), Held: &n}
		if after.Backlog != nil && len(held) < shards {
			after.Backlog.Precision = v1alpha1.PrecisionAtLeast // nobody counts the shards that nobody holds
		}
	}
	after.Backlog = withDrainTime(after.Backlog, after.Rates)
	return after
}

func addRates(sum *v1alpha1.RelayRates, r *statusz.Relay) *v1alpha1.RelayRates {
	if r.PublishedPerSec == nil && r.ArrivedPerSec == nil {
		return sum
	}
	if sum == nil {
		sum = &v1alpha1.RelayRates{}
	}
	if n := r.PublishedPerSec; n != nil {
		sum.PublishedPerSecond = add(sum.PublishedPerSecond, *n)
	}
	if n := r.ArrivedPerSec; n != nil {
		sum.ArrivedPerSecond = add(sum.ArrivedPerSecond, *n)
	}
	return sum
}

func addBacklog(sum *v1alpha1.Backlog, b *statusz.Backlog) *v1alpha1.Backlog {
	if sum == nil {
		sum = &v1alpha1.Backlog{Precision: v1alpha1.PrecisionExact}
	}
	sum.Messages = add(sum.Messages, b.Messages)
	sum.InFlight = add(sum.InFlight, b.InFlight)
	sum.Retrying = add(sum.Retrying, b.Retrying)
	sum.BlockedMessages = add(sum.BlockedMessages, b.BlockedMessages)
	sum.BlockedKeys = add(sum.BlockedKeys, b.BlockedKeys)
	sum.OldestMessageTime = earlier(sum.OldestMessageTime, b.OldestMessageTime)
	sum.OldestBlockedTime = earlier(sum.OldestBlockedTime, b.OldestBlockedTime)
	if b.Precision != string(v1alpha1.PrecisionExact) {
		sum.Precision = v1alpha1.PrecisionAtLeast
	}
	return sum
}

// withDrainTime estimates how long the backlog takes at the current rate.
func withDrainTime(b *v1alpha1.Backlog, rates *v1alpha1.RelayRates) *v1alpha1.Backlog {
	if b == nil || rates == nil || rates.PublishedPerSecond == nil || *rates.PublishedPerSecond == 0 {
		return b
	}
	seconds := (*b.Messages + *rates.PublishedPerSecond - 1) / *rates.PublishedPerSecond
	b.EstimatedDrainTime = v1alpha1.Duration((time.Duration(seconds) * time.Second).String())
	return b
}

func deadLetters(c *statusz.Count) *v1alpha1.DeadLetterCount {
	open := c.Open
	return &v1alpha1.DeadLetterCount{Open: &open, OldestTime: earlier(nil, c.OldestTime)}
}

// relayFigures takes the figures out of a status.
func relayFigures(s v1alpha1.OutboxRelayStatus) (v1alpha1.OutboxRelayStatus, figures) {
	rest := *s.DeepCopy()
	rest.ObservedTime, rest.LastPublishedTime = nil, nil
	var f figures
	if b := s.Backlog; b != nil {
		f.passing = b.Messages
		f.counts = []*int64{b.Retrying, b.BlockedMessages, b.BlockedKeys}
		f.oldest = []*metav1.Time{b.OldestMessageTime, b.OldestBlockedTime}
		rest.Backlog = &v1alpha1.Backlog{Precision: b.Precision}
	}
	f.addDeadLetters(s.DeadLetters, &rest.DeadLetters)
	if r := s.Rates; r != nil {
		f.rates = []*int64{r.PublishedPerSecond, r.ArrivedPerSecond}
		rest.Rates = &v1alpha1.RelayRates{}
	}
	return rest, f
}
