package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/broker"
)

const (
	lookTimeout = 5 * time.Second

	// assumedMaxBytes bounds what is sent together where the topic's own bound is not to be seen: Kafka's default for it.
	assumedMaxBytes = 1048588
	// believed is how long a refusal may go by a look at the topic. It bounds the looks of a stream of large messages.
	believed = time.Second

	settingMaxBytes = "max.message.bytes"
	settingMinISR   = "min.insync.replicas"
	settingCleanup  = "cleanup.policy"
)

// topic is what is known of a topic.
type topic struct {
	// err is why nothing can be written to it: an error of package kerr.
	err error
	// at is when the look was.
	at time.Time
	// maxBytes bounds a record with its headers; 0 where that is not to be seen, and the broker alone can tell.
	maxBytes int
	// unread says that the settings could not be read this time, and perhaps can the next.
	unread bool
	// partitions is how many it has; 0 where that is not to be seen.
	partitions int
	// copies and minISR are its replicas and how many have to have a record; 0 where that is not to be seen.
	copies, minISR int
	cleanup        string
}

// refuses says whether the topic, as the look has shown it, does not take a record of the size.
func (t *topic) refuses(size int) bool { return t.maxBytes > 0 && size > t.maxBytes }

// old says whether a refusal must not go by the look: the setting may be another one by now.
func (t *topic) old(now time.Time) bool { return now.Sub(t.at) >= believed }

// topics remembers what a look at topics has shown.
type topics struct {
	mu    sync.RWMutex
	known map[string]topic
	// units names the partitions of each topic that was ever seen: whatever happens to a topic, its messages belong to
	// the same ones.
	units map[string][]string
	// recounts are when topics were last seen with another number of partitions than before.
	recounts map[string]recount
}

// recount is a change of how many partitions a topic has.
type recount struct {
	at       time.Time
	from, to int
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

// doubt has a topic looked at again of which the broker says that it takes less than was seen, unless the look was just
// now.
func (t *topics) doubt(name string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one, ok := t.known[name]; ok && one.old(now) {
		delete(t.known, name)
	}
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

// keep remembers topics that can be written to, and says whether one has another number of partitions than it had. What is
// wrong with one, or could not be read, is looked at again each time: it may be mended.
func (t *topics) keep(found map[string]topic) (recounted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.units)+len(found) > maxKnownTopics {
		t.known, t.units = make(map[string]topic), make(map[string][]string)
		t.recounts = make(map[string]recount)
	}
	for name, one := range found {
		if one.err != nil {
			continue
		}
		if one.unread {
			delete(t.known, name)
		} else {
			t.known[name] = one
		}
		if had := len(t.units[name]); had != one.partitions {
			t.units[name] = unitsOf(name, one.partitions)
			if had > 0 {
				t.recounts[name], recounted = recount{at: one.at, from: had, to: one.partitions}, true
			}
		}
	}
	return recounted
}

// recountedFor is how long a change of partitions is told: long enough for a person to see it.
const recountedFor = time.Hour

// warnings says what may hurt of how a topic has changed.
func (t *topics) warnings(name string, now time.Time) []broker.Warning {
	t.mu.RLock()
	defer t.mu.RUnlock()
	change, ok := t.recounts[name]
	if !ok || now.Sub(change.at) > recountedFor {
		return nil
	}
	const said = "topic %s has %d partitions and had %d: keys have moved to others, and where old and new ones are read " +
		"side by side a key's order rests on versions"
	detail := broker.Bounded(fmt.Sprintf(said, name, change.to, change.from))
	return []broker.Warning{{Reason: broker.WarnPartitions, Detail: detail}}
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

// look asks the cluster for topics. An error is *broker.Error and says that it did not answer. It asks in the library's
// requests and not by its helpers (kadm): those tell nothing of any topic where one of them may not be seen.
func (c *client) look(ctx context.Context, names ...string) (map[string]topic, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	now := c.now()
	req := kmsg.NewPtrMetadataRequest()
	found := make(map[string]topic, len(names))
	for _, name := range names {
		found[name] = topic{err: kerr.UnknownTopicOrPartition, at: now}
		one := kmsg.NewMetadataRequestTopic()
		one.Topic = new(name)
		req.Topics = append(req.Topics, one)
	}
	answer, err := c.RequestCachedMetadata(ctx, req, 0)
	if err != nil {
		return nil, stateError(c.dial, "look up topics "+strings.Join(names, ", "), err)
	}
	for i := range answer.Topics {
		detail := &answer.Topics[i]
		if detail.Topic == nil {
			continue
		}
		one := topic{err: kerr.ErrorForCode(detail.ErrorCode), at: now, partitions: len(detail.Partitions)}
		if one.partitions > 0 {
			one.copies = len(detail.Partitions[0].Replicas)
		}
		found[*detail.Topic] = one
	}
	c.addSettings(ctx, found)
	return found, nil
}

// addSettings adds what the topics' settings say.
func (c *client) addSettings(ctx context.Context, found map[string]topic) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for name, one := range found {
		if one.err != nil {
			continue
		}
		one.unread = true
		found[name] = one
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, name
		resource.ConfigNames = []string{settingMaxBytes, settingMinISR, settingCleanup}
		req.Resources = append(req.Resources, resource)
	}
	if len(req.Resources) == 0 {
		return
	}
	settings, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return
	}
	for i := range settings.Resources {
		resource := &settings.Resources[i]
		if one, ok := found[resource.ResourceName]; ok {
			found[resource.ResourceName] = one.with(resource)
		}
	}
}

// with returns the topic with what its settings say. That the user has no right to see them is an answer too.
func (t topic) with(settings *kmsg.DescribeConfigsResponseResource) topic {
	err := kerr.ErrorForCode(settings.ErrorCode)
	t.unread = err != nil && !errors.Is(err, kerr.TopicAuthorizationFailed)
	if err != nil {
		return t
	}
	for _, setting := range settings.Configs {
		if setting.Value == nil {
			continue
		}
		switch setting.Name {
		case settingMaxBytes:
			if n, err := strconv.Atoi(*setting.Value); err == nil && n > 0 {
				t.maxBytes = n
			}
		case settingMinISR:
			if n, err := strconv.Atoi(*setting.Value); err == nil {
				t.minISR = n
			}
		case settingCleanup:
			t.cleanup = *setting.Value
		}
	}
	return t
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
