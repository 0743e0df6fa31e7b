package broker

import "time"

// Warning is a state of the broker's topology that works but may hurt later: a condition, never a stop.
type Warning struct {
	Reason WarningReason
	// Detail is fixed text of ours, with names from the configuration and numbers, that says what to do.
	Detail string
}

// WarningReason is why a topology deserves a warning: a closed set, used in conditions.
type WarningReason string

// Reasons of warnings.
const (
	// WarnMayDiscard: the target can drop messages that nobody has consumed yet.
	WarnMayDiscard WarningReason = "TargetMayDiscard"
	// WarnFewReplicas: one broken server can lose confirmed messages.
	WarnFewReplicas WarningReason = "FewReplicas"
	// WarnDeliveryLimit: the broker stops delivering a message before our own retry budget is spent.
	WarnDeliveryLimit WarningReason = "DeliveryLimitTooLow"
	// WarnMayExpire: the broker deletes the consumer's state while nobody is connected.
	WarnMayExpire WarningReason = "ConsumerMayExpire"
	// WarnConsumerLost: the broker had lost the consumer's state and it was made again from the stored position.
	WarnConsumerLost WarningReason = "ConsumerLost"
	// WarnStalled: the broker holds messages for the consumer and delivers none; the subscription was made again.
	WarnStalled WarningReason = "ConsumerRecreated"
	// WarnAckPending: as many messages as the broker allows are delivered and not acknowledged.
	WarnAckPending WarningReason = "AckPendingSaturated"
	// WarnPartitions: keys have moved to other partitions, where they may be read before what is left in the old ones.
	WarnPartitions WarningReason = "PartitionCountChanged"
	// WarnUnchecked: the broker does not show whether the target is what the configuration needs.
	WarnUnchecked WarningReason = "TopologyUnchecked"
)

// Lag is what the broker holds for a consumer and has not seen acknowledged.
type Lag struct {
	Messages int64
	// OldestTime is when the broker stored the oldest of them; nil where it is not known.
	OldestTime *time.Time
}
