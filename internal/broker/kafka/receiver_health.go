package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/internal/broker"
)

const (
	// lookPeriod is how often the topics are looked at while all is well, lookAgain while it is not.
	lookPeriod = 5 * time.Second
	lookAgain  = time.Second
)

// health is what is known of cluster, group and topics. The receiver's lock guards it.
type health struct {
	look   *broker.Error            // of the cluster; nil where it answers
	group  *broker.Error            // of the group; nil where we are in it, or about to be
	topics map[string]*broker.Error // of those that cannot be read
	renew  map[string]bool          // topics that were made again: the library reads them anew once it has forgotten them
}

// state says why nothing comes at all; nil where something may. One topic or partition that cannot be read does not hold
// up the others: Check tells of it. The lock is held.
func (r *Receiver) state() error {
	for _, err := range [...]*broker.Error{r.health.look, r.health.group} {
		if err != nil {
			return err
		}
	}
	topics := make(map[string]bool, len(r.cfg.Topics))
	for _, name := range r.cfg.Topics {
		topics[name] = true
	}
	if err := r.topicState(); err != nil && len(r.health.topics) == len(topics) {
		return err
	}
	failed, err := r.partitionState()
	if err != nil && failed == len(r.parts) {
		return err
	}
	return nil
}

// topicState returns what is wrong with a topic. The lock is held.
func (r *Receiver) topicState() error {
	for _, name := range r.cfg.Topics {
		if err := r.health.topics[name]; err != nil {
			return err
		}
	}
	return nil
}

// partitionState counts the partitions that cannot be read, and returns what is wrong with the first. The lock is held.
func (r *Receiver) partitionState() (failed int, first error) {
	var at place
	for _, p := range r.parts {
		if p.err == nil {
			continue
		}
		failed++
		if first == nil || p.topic < at.topic || p.topic == at.topic && p.partition < at.partition {
			first, at = p.err, p.place
		}
	}
	return failed, first
}

// Check says whether the source is usable (the error is *broker.Error) and what about it may hurt later. The error may
// concern a part of it only.
func (r *Receiver) Check(ctx context.Context) ([]broker.Warning, error) {
	found, err := r.client.look(ctx, r.cfg.Topics...)
	if err != nil {
		return nil, err
	}
	var warnings []broker.Warning
	for _, name := range r.cfg.Topics {
		one := found[name]
		if err := usable(name, one); err != nil {
			return nil, err
		}
		warnings = append(warnings, topicWarnings(name, one)...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	warnings = append(warnings, r.notes.Warnings(r.now())...)
	if err := r.state(); err != nil {
		return warnings, err
	}
	_, err = r.partitionState()
	return warnings, err
}

// Lag returns what the topics hold for the whole group and it has not seen acknowledged: the end, less the committed
// offset or the log's start where that is higher. The time of the oldest is known of this process's partitions.
func (r *Receiver) Lag(ctx context.Context) (broker.Lag, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	admin := kadm.NewClient(r.client.Client)
	committed, err := admin.FetchOffsetsForTopics(ctx, r.cfg.Group, r.cfg.Topics...)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return broker.Lag{}, groupError(r.client.dial, r.cfg.Group, err)
	}
	starts, err := listed(admin.ListStartOffsets(ctx, r.cfg.Topics...))
	if err != nil {
		return broker.Lag{}, stateError(r.client.dial, "look up where topics begin", err)
	}
	ends, err := listed(admin.ListCommittedOffsets(ctx, r.cfg.Topics...))
	if err != nil {
		return broker.Lag{}, stateError(r.client.dial, "look up where topics end", err)
	}
	lag := broker.Lag{}
	ends.Each(func(end kadm.ListedOffset) {
		from := int64(0)
		if start, ok := starts.Lookup(end.Topic, end.Partition); ok {
			from = start.Offset
		}
		if at, ok := committed.Lookup(end.Topic, end.Partition); ok {
			from = max(from, at.At)
		}
		lag.Messages += max(end.Offset-from, 0)
	})
	if lag.Messages > 0 {
		lag.OldestTime = r.oldest()
	}
	return lag, nil
}

func listed(offsets kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err == nil {
		err = offsets.Error()
	}
	return offsets, err
}

// oldest returns when the broker got the oldest record that is unfinished here.
func (r *Receiver) oldest() *time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest *time.Time
	for _, p := range r.parts {
		if at, ok := p.oldest(); ok && (oldest == nil || at.Before(*oldest)) {
			oldest = &at
		}
	}
	return oldest
}

// asState returns the error as the state that it is; nil for nil.
func asState(err error) *broker.Error {
	if state, ok := errors.AsType[*broker.Error](err); ok {
		return state
	}
	return nil
}

// passing says whether a group's error is one that joining it again mends.
func passing(err error) bool {
	for _, target := range [...]error{
		kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.CoordinatorLoadInProgress,
		kerr.NotCoordinator, context.Canceled,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// groupError says why we are not in the group.
func groupError(d *dialer, group string, err error) *broker.Error {
	state := func(reason broker.Reason, detail string) *broker.Error {
		return &broker.Error{Reason: reason, Detail: broker.Bounded("group " + group + ": " + detail)}
	}
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return state(broker.ReasonPermissionDenied,
			"the user may not read with it: kafka-acls.sh --add --operation Read --group "+group+
				" --allow-principal User:…")
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return state(broker.ReasonStreamMismatch,
			"consumers of another kind are in it: stop them, or name another group")
	case errors.Is(err, kerr.GroupMaxSizeReached):
		return state(broker.ReasonStreamFull, "it has as many members as the broker's group.max.size: raise that")
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return state(broker.ReasonStreamMismatch,
			"the broker takes no session timeout of ours: check group.min.session.timeout.ms and the max")
	default:
		return stateError(d, "join group "+group, err)
	}
}

// partitionError says why nothing comes of a partition.
func partitionError(at place, err error) *broker.Error {
	var known *kerr.Error
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return &broker.Error{Reason: broker.ReasonOffsetGone, Detail: broker.Bounded(at.String() +
			" no longer holds the next message: it was deleted before it was read. Set source.kafka.offsetReset to " +
			"Earliest to go on with the oldest that is left")}
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return &broker.Error{Reason: broker.ReasonPermissionDenied, Detail: broker.Bounded(
			"the user may not read topic " + at.topic + ": kafka-acls.sh --add --operation Read --topic " + at.topic +
				" --allow-principal User:…")}
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: broker.Bounded(
			"topic " + at.topic + " was made again: what the old one held unread is gone, and the consumer begins anew",
		)}
	case errors.As(err, &known):
		return &broker.Error{Reason: broker.ReasonBrokerError, Detail: broker.Bounded(
			at.String() + " cannot be read at the moment (" + known.Message + ")")}
	default:
		return &broker.Error{Reason: broker.ReasonBrokerError, Detail: broker.Bounded(
			at.String() + " brings what cannot be read: check its settings and the brokers' logs")}
	}
}
