package kafka

import (
	"context"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
)

// answer is what the broker said of a record.
type answer struct {
	confirmation broker.Confirmation
	// shared says that the broker refused a batch of which the record was part: which record it means is known only when
	// each was sent alone.
	shared bool
}

func certain(c broker.Confirmation) answer { return answer{confirmation: c} }

// answerTo says what a record's error means. Fallback says that its topic is the relay's own and not one that the row
// names: what is wrong with that is nothing that another row could mend.
func answerTo(err error, topic string, fallback bool) answer {
	var known *kerr.Error
	switch {
	case !errors.As(err, &known):
		return certain(clientError(err))
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return answer{broker.Reject(broker.ReasonTooLarge, "the record exceeds the topic's max.message.bytes"), true}
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.CorruptMessage), errors.Is(err, kerr.InvalidTimestamp):
		return answer{broker.Reject(broker.ReasonRefused,
			"the broker finds the record invalid ("+known.Message+"): check the topic's settings"), true}
	case errors.Is(err, kerr.PolicyViolation):
		return answer{broker.Refuse(broker.ReasonRefused, "a policy of the broker refuses the record"), true}
	case errors.Is(err, kerr.NotEnoughReplicas):
		return certain(broker.Postpone(broker.ReasonNotReplicated,
			"topic "+topic+" has fewer in-sync replicas than min.insync.replicas: bring brokers back"))
	case errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		return certain(broker.Doubt(broker.ReasonNotReplicated, "the record was written and not replicated in time"))
	case errors.Is(err, kerr.RequestTimedOut):
		return certain(broker.Doubt(broker.ReasonNoAnswer, "the broker could not say in time whether it was written"))
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return certain(missing(topic, fallback))
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return certain(denied(topic, fallback))
	case isSequence(err):
		return certain(
			broker.Doubt(broker.ReasonBrokerError, "the broker has forgotten the producer; a new one begins"),
		)
	}
	return certain(brokerError(known))
}

// brokerError is for what the broker says of itself, or of our rights to it.
func brokerError(err *kerr.Error) broker.Confirmation {
	switch err.Code {
	case kerr.SaslAuthenticationFailed.Code, kerr.UnsupportedSaslMechanism.Code, kerr.IllegalSaslState.Code:
		return broker.Postpone(broker.ReasonAuthFailed, authDetail)
	case kerr.ClusterAuthorizationFailed.Code, kerr.GroupAuthorizationFailed.Code,
		kerr.TransactionalIDAuthorizationFailed.Code, kerr.TopicAuthorizationFailed.Code:
		return broker.Postpone(broker.ReasonPermissionDenied, "the user lacks a right ("+err.Message+"): grant it")
	}
	return broker.Postpone(broker.ReasonBrokerError, "the broker cannot take records at the moment ("+err.Message+")")
}

const authDetail = "the broker refuses the login: check the Secret's username and password, and sasl.mechanism"

// isSequence says whether the broker's memory of the producer and ours differ.
func isSequence(err error) bool {
	for _, target := range [...]error{
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.InvalidProducerIDMapping, kerr.ProducerFenced,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// clientError is for an error that no broker sent: the record was perhaps sent and not answered.
func clientError(err error) broker.Confirmation {
	switch {
	case errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled),
		errors.Is(err, kgo.ErrRecordTimeout):
		return broker.Doubt(broker.ReasonNoAnswer, "no answer in time")
	default:
		return broker.Doubt(broker.ReasonNoAnswer, "the connection ended before the answer")
	}
}

// missing is for a record whose topic is not there.
func missing(topic string, fallback bool) broker.Confirmation {
	if fallback {
		return broker.Postpone(broker.ReasonStreamMissing, missingDetail(topic))
	}
	return broker.Reject(broker.ReasonUnroutable, "the row's topic does not exist: create it, or correct the row")
}

// missingDetail says how to make a topic.
func missingDetail(topic string) string {
	return "topic " + topic + " is missing: kafka-topics.sh --create --topic " + topic +
		" --partitions 12 --replication-factor 3 --config min.insync.replicas=2"
}

// denied is for a record whose topic the user may not write.
func denied(topic string, fallback bool) broker.Confirmation {
	if fallback {
		return broker.Postpone(broker.ReasonPermissionDenied, "the user may not write topic "+topic+": allow it")
	}
	return broker.Refuse(broker.ReasonPermissionDenied, "the user may not write the row's topic")
}

// stateError says why a request of ours was not answered as hoped, in words of ours.
func stateError(d *dialer, doing string, err error) *broker.Error {
	var known *kerr.Error
	var state *broker.Error
	server, dialErr := d.failure()
	switch {
	case errors.As(err, &state):
		return state
	case errors.As(err, &known):
		c := brokerError(known)
		return &broker.Error{Reason: c.Reason, Detail: broker.Bounded(doing + ": " + c.Detail)}
	}
	for _, cause := range [...]error{dialErr, err} {
		if state := endpoint.StateError(server, cause); state != nil {
			return state
		}
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return &broker.Error{Reason: broker.ReasonNoAnswer, Detail: doing + ": no answer in time", Err: err}
	}
	if errors.Is(err, context.Canceled) {
		return &broker.Error{Reason: broker.ReasonNotSent, Detail: doing + ": ended by us", Err: err}
	}
	return &broker.Error{Reason: broker.ReasonUnreachable, Detail: doing + ": the connection to Kafka ended"}
}

// unavailable turns a state into a message's confirmation.
func unavailable(err error) broker.Confirmation {
	if e, ok := errors.AsType[*broker.Error](err); ok {
		return broker.Postpone(e.Reason, e.Detail)
	}
	return broker.Postpone(broker.ReasonUnreachable, "not connected to Kafka")
}
