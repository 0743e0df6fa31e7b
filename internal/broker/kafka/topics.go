package kafka

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/internal/broker"
)

const (
	lookTimeout = 5 * time.Second

	// assumedMaxBytes bounds a record where the topic's own bound is not to be seen: Kafka's default for it.
	assumedMaxBytes = 1048588

	settingMaxBytes = "max.message.bytes"
	settingMinISR   = "min.insync.replicas"
	settingCleanup  = "cleanup.policy"
)

// topic is what is known of a topic.
type topic struct {
	// err is why nothing can be written to it: an error of package kerr.
	err error
	// maxBytes bounds a record with its headers.
	maxBytes int
	// partitions is how many it has; 0 where that is not to be seen.
	partitions int
	// copies and minISR are its replicas and how many have to have a record; 0 where that is not to be seen.
	copies, minISR int
	cleanup        string
}

// topics remembers what a look at topics has shown.
type topics struct {
	mu    sync.RWMutex
	known map[string]topic
	// units names the partitions of each topic that was ever seen: whatever happens to a topic, its messages belong to
	// the same ones.
	units map[string][]string
}

// get returns a topic that a look has shown.
func (t *topics) get(name string) (topic, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	found, ok := t.known[name]
	return found, ok
}

// forget has topics looked at again.
func (t *topics) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.known)
}

// wrote notes where a record was kept. The library learns by itself that a topic has more partitions than it had: then
// it is looked at again, so that its new partitions become units.
func (t *topics) wrote(name string, partition int32) {
	t.mu.RLock()
	grown := int(partition) >= len(t.units[name])
	t.mu.RUnlock()
	if grown {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.known, name)
	}
}

// maxKnownTopics bounds the memory: rows may name many.
const maxKnownTopics = 4096

// keep remembers topics that can be written to. What is wrong with one is looked at again each time: it may be mended.
func (t *topics) keep(found map[string]topic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.units)+len(found) > maxKnownTopics {
		t.known, t.units = make(map[string]topic), make(map[string][]string)
	}
	for name, one := range found {
		if one.err != nil {
			continue
		}
		t.known[name] = one
		if len(t.units[name]) != one.partitions {
			t.units[name] = unitsOf(name, one.partitions)
		}
	}
}

// unitsOf names the partitions of a topic.
func unitsOf(name string, partitions int) []string {
	units := make([]string, partitions)
	for i := range units {
		units[i] = name + "/" + strconv.Itoa(i)
	}
	return units
}

// partitions returns the names of a topic's partitions, as they were last seen.
func (t *topics) partitions(name string) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.units[name]
}

// look asks the cluster for topics. An error is *broker.Error and says that it did not answer.
func (c *client) look(ctx context.Context, names ...string) (map[string]topic, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	admin := kadm.NewClient(c.Client)
	details, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, stateError(c.dial, "look up topics "+strings.Join(names, ", "), err)
	}
	found := make(map[string]topic, len(names))
	for _, name := range names {
		one := topic{err: kerr.UnknownTopicOrPartition, maxBytes: assumedMaxBytes}
		if detail, ok := details[name]; ok {
			one.err = detail.Err
			one.partitions = len(detail.Partitions)
			one.copies = detail.Partitions.NumReplicas()
		}
		found[name] = one
	}
	c.addSettings(ctx, admin, found)
	return found, nil
}

// addSettings adds what the topics' settings say. Without the right to see them, Kafka's defaults are assumed.
func (c *client) addSettings(ctx context.Context, admin *kadm.Client, found map[string]topic) {
	var names []string
	for name, one := range found {
		if one.err == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	settings, err := admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return
	}
	for _, resource := range settings {
		one, ok := found[resource.Name]
		if !ok || resource.Err != nil {
			continue
		}
		for _, setting := range resource.Configs {
			value := setting.MaybeValue()
			switch setting.Key {
			case settingMaxBytes:
				if n, err := strconv.Atoi(value); err == nil && n > 0 {
					one.maxBytes = n
				}
			case settingMinISR:
				if n, err := strconv.Atoi(value); err == nil {
					one.minISR = n
				}
			case settingCleanup:
				one.cleanup = value
			}
		}
		found[resource.Name] = one
	}
}

// usable says why nothing can be written to the relay's own topic. The error is *broker.Error.
func usable(name string, t topic) error {
	var known *kerr.Error
	switch {
	case t.err == nil:
		return nil
	case errors.Is(t.err, kerr.UnknownTopicOrPartition):
		return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: broker.Bounded(missingDetail(name))}
	case errors.Is(t.err, kerr.TopicAuthorizationFailed):
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: broker.Bounded("the user may not see topic " + name + ": allow it"),
		}
	case errors.As(t.err, &known):
		c := brokerError(known)
		return &broker.Error{Reason: c.Reason, Detail: c.Detail}
	default:
		return &broker.Error{Reason: broker.ReasonBrokerError, Detail: "the answer is not understood"}
	}
}

// wantCopies survive a broken broker, and still take records while it is away.
const (
	wantCopies = 3
	wantMinISR = 2
)

// topicWarnings says how a topic can lose what it has confirmed.
func topicWarnings(name string, t topic) []broker.Warning {
	var warnings []broker.Warning
	warn := func(reason broker.WarningReason, detail string) {
		warnings = append(
			warnings,
			broker.Warning{Reason: reason, Detail: broker.Bounded("topic " + name + " " + detail)},
		)
	}
	switch {
	case t.copies > 0 && t.copies < wantMinISR:
		warn(broker.WarnFewReplicas, "has 1 replica: one broken broker can lose confirmed messages; use "+
			strconv.Itoa(wantCopies))
	case t.copies >= wantCopies && t.minISR > 0 && t.minISR < wantMinISR:
		warn(broker.WarnFewReplicas, "has min.insync.replicas 1: a message is confirmed with one copy; use "+
			strconv.Itoa(wantMinISR))
	}
	if strings.Contains(t.cleanup, "compact") {
		warn(
			broker.WarnMayDiscard,
			"is compacted and keeps the latest message of a key only: use cleanup.policy=delete",
		)
	}
	return warnings
}
