package brokertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
)

// Subject is one broker under test, with a stream (topic, queue) of its own that is empty at the start. Functions that
// a broker has no way for are nil; the cases that need them are then no part of the suite for it.
type Subject struct {
	// Allowed is a destination that rows may name and that the stream holds.
	Allowed string
	// Unroutable is a destination that rows may name and that nobody holds; empty where there is no such thing.
	Unroutable string
	// Refusing returns a destination that rows may name, and whose messages the broker itself refuses once they are sent.
	Refusing func(t *testing.T) string
	// MaxPayload is the largest payload that the broker takes for sure; twice as much is too large.
	MaxPayload int
	// Dedupes says that the broker stores a message that is sent again at once only once.
	Dedupes bool
	// Resends says that the client sends again by itself what lost its answer, and that the broker stores it once.
	Resends bool

	// InPartitions says that the broker's order is one of partitions, which a consumer reads without passing anything: a
	// released delivery holds up what is behind it in its partition.
	InPartitions bool
	// ForgetsDeliveries says that the broker does not count how often it has handed out a message: a receiver knows only
	// of what was released to itself.
	ForgetsDeliveries bool
	// Unnumbered says that the broker gives messages no numbers: deliveries have no sequence.
	Unnumbered bool
	// TellsRedelivery says that the broker tells whether it has handed out a message before, and not how often.
	TellsRedelivery bool

	// Publisher returns a publisher over a connection of its own, closed when the test ends.
	Publisher func(t *testing.T) broker.Publisher
	// Formatted is Publisher for another format of messages than message.Native.
	Formatted func(t *testing.T, format message.Format) broker.Publisher
	// Receiver returns a receiver on the durable, closed when the test ends.
	Receiver func(t *testing.T, durable string, prefetch int) Receiver
	// Stored returns what the broker holds, in its order. It works also while clients are cut off.
	Stored func(t *testing.T) []Stored

	// Silence keeps all connections open and moves nothing, until Restore.
	Silence func()
	// Restore ends Silence.
	Restore func()
	// Slow holds every byte back for so long, in both directions.
	Slow func(delay time.Duration)
	// Cut ends all connections; new ones are served.
	Cut func()
	// LoseAnswer has the broker take the next message that contains the marker and loses the answer with the connection.
	LoseAnswer func(marker string) <-chan struct{}
	// Kill ends the broker with no chance to tidy up.
	Kill func(t *testing.T)
	// Start starts a killed broker on what it had stored.
	Start func(t *testing.T)
}

// Receiver is a receiver that a test can close early.
type Receiver struct {
	broker.Receiver
	// Close drains the receiver: acknowledgements are sent, what was not handed out is given back.
	Close func()
	// Crash ends the receiver as kill -9 would; nil where there is no way.
	Crash func()
}

const (
	answerTime = 10 * time.Second // for an answer of a healthy broker on a busy machine
	healTime   = 2 * time.Minute  // for everything to flow again after a fault, where that is a killed server
)

// MayKill lets the suite kill and start the server.
func (s *Subject) MayKill(server interface {
	Kill(ctx context.Context) error
	Start(ctx context.Context) error
},
) {
	s.Kill = func(t *testing.T) {
		t.Helper()
		if err := server.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.Start = func(t *testing.T) {
		t.Helper()
		if err := server.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Run runs the suite, each case against a subject of its own.
func Run(t *testing.T, subject func(t *testing.T) *Subject) {
	t.Helper()
	RunPublisher(t, subject)
	RunReceiver(t, subject)
}

// RunPublisher runs the part of the suite that is about publishing. A subject without receivers is enough.
func RunPublisher(t *testing.T, subject func(t *testing.T) *Subject) {
	t.Helper()
	runCases(t, subject, map[string]func(*testing.T, *Subject){
		"a confirmed message is at the broker, byte for byte":         confirmedIsStored,
		"a message of each format comes back as it went":              eachFormat,
		"what no CloudEvent can say is refused alone":                 refusedEvents,
		"an empty batch has an empty answer":                          emptyBatch,
		"one refused message leaves its neighbours alone":             refusals,
		"messages of one key keep their order in a batch":             orderInBatch,
		"after a refusal the rest of the key is not sent":             restOfKeyWaits,
		"a key is held together across destinations":                  acrossDestinations,
		"a message sent twice is confirmed twice":                     sentTwice,
		"a message sent again on purpose is kept again":               sentAgain,
		"a lost answer is unknown, and the same id goes again":        lostAnswer,
		"a silent broker does not hold Publish beyond its deadline":   silentPublish,
		"a slow broker leaves no doubt about what it has no time for": slowPublish,
		"a context that has ended sends nothing":                      endedContext,
		"publishing goes on after cut connections":                    publishThroughCuts,
		"what was confirmed outlives a killed broker, in order":       publishThroughKill,
		"a message is kept in the unit that is named for it":          unitsArePlaces,
		"batches side by side keep the order of their keys":           concurrentBatches,
	})
}

// RunReceiver runs the part of the suite that is about receiving.
func RunReceiver(t *testing.T, subject func(t *testing.T) *Subject) {
	t.Helper()
	runCases(t, subject, map[string]func(*testing.T, *Subject){
		"deliveries come in the broker's order with their positions": deliveriesInOrder,
		"a receiver never holds more than its prefetch":              prefetch,
		"Receive ends with its context":                              receiveEnds,
		"a released delivery comes again after its pause":            release,
		"what was acknowledged does not come again":                  drain,
		"what a crashed receiver held goes to another":               crash,
		"two receivers on one durable share its messages":            sharedDurable,
		"two durables each get every message":                        twoDurables,
		"a receiver goes on after cut connections":                   receiveThroughCuts,
		"a receiver goes on after silence":                           receiveThroughSilence,
		"a receiver goes on after a killed broker":                   receiveThroughKill,
	})
}

func runCases(t *testing.T, subject func(t *testing.T) *Subject, cases map[string]func(*testing.T, *Subject)) {
	t.Helper()
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, subject(t))
		})
	}
}

// Message returns a message of the key with its version; version 0 makes an unordered one.
func Message(key string, version int64) message.Message {
	var id message.ID
	_, _ = rand.Read(id[:]) // never fails
	if version == 0 {
		key = id.String()
	}
	payload := fmt.Appendf(nil, `{"key":%q,"version":%d}`, key, version)
	return message.Message{
		ID:               id,
		Type:             "test.happened",
		SchemaVersion:    1,
		Source:           "brokertest",
		OrderingKey:      key,
		AggregateVersion: version,
		ContentType:      "application/json",
		Payload:          payload,
		Size:             len(payload),
		Headers:          map[string]string{"tenant": "nörd"},
		OccurredAt:       time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
	}
}

// publish publishes within answerTime.
func publish(t *testing.T, p broker.Publisher, batch ...message.Message) []broker.Confirmation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	got := p.Publish(ctx, batch)
	if len(got) != len(batch) {
		t.Fatalf("%d answers to %d messages", len(got), len(batch))
	}
	for i, c := range got {
		if c.Outcome == broker.Confirmed && c.Position == "" || c.Outcome != broker.Confirmed && c.Reason == "" {
			t.Errorf("answer %d lacks its position or reason: %+v", i, c)
		}
		if len(c.Detail) > 256 {
			t.Errorf("answer %d has a detail of %d bytes", i, len(c.Detail))
		}
	}
	return got
}

// PublishAll publishes again, with the same ids, what was not confirmed, as a relay does: in order, and a key's later
// messages only with or after its earlier ones.
func PublishAll(t *testing.T, p broker.Publisher, batch ...message.Message) {
	t.Helper()
	deadline, cancel := context.WithTimeout(t.Context(), healTime)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var last broker.Confirmation
	for len(batch) > 0 {
		ctx, cancel := context.WithTimeout(deadline, 3*time.Second)
		got := p.Publish(ctx, batch)
		cancel()
		var left []message.Message
		for i, c := range got {
			switch c.Outcome {
			case broker.Confirmed:
			case broker.Unknown, broker.Unavailable:
				left, last = append(left, batch[i]), c
			default:
				t.Fatalf("message %d: %+v", i, c)
			}
		}
		batch = left
		select {
		case <-poll.C:
		case <-deadline.Done():
			t.Fatalf("%d messages not confirmed in %s, one of them: %+v", len(batch), healTime, last)
		}
	}
}

// wantOutcome checks one answer.
func wantOutcome(t *testing.T, what string, got broker.Confirmation, outcome broker.Outcome, reason broker.Reason) {
	t.Helper()
	if got.Outcome != outcome || got.Reason != reason {
		t.Errorf("%s: %s %s (%s), want %s %s", what, got.Outcome, got.Reason, got.Detail, outcome, reason)
	}
}

// wantStoredInOrder is WantInOrder with what the subject's broker holds.
func wantStoredInOrder(t *testing.T, s *Subject, batch []message.Message, copies bool) {
	t.Helper()
	WantInOrder(t, s.Stored(t), batch, copies)
}

// WantInOrder checks that the broker holds all messages, and that the first copies of each key's are in the order of
// their versions, which begin with 1; once each where there are to be no copies.
func WantInOrder(t *testing.T, stored []Stored, batch []message.Message, copies bool) {
	t.Helper()
	count := make(map[string]int)
	next := make(map[string]int64)
	for i := range stored {
		e, err := message.Decode(&stored[i].Record)
		if err != nil {
			t.Fatalf("stored message %d: %v", i, err)
		}
		count[e.EventID]++
		if count[e.EventID] > 1 {
			continue
		}
		if e.AggregateVersion > 0 && e.AggregateVersion != next[e.OrderingKey]+1 {
			t.Errorf("key %s: version %d comes after %d", e.OrderingKey, e.AggregateVersion, next[e.OrderingKey])
		}
		next[e.OrderingKey] = e.AggregateVersion
	}
	for i := range batch {
		switch n := count[batch[i].ID.String()]; {
		case n == 0:
			t.Errorf("message %d of key %s is not at the broker", i, batch[i].OrderingKey)
		case n > 1 && !copies:
			t.Errorf("message %d of key %s is at the broker %d times", i, batch[i].OrderingKey, n)
		}
	}
}

// Interleaved returns n versions of each of k keys, as a busy outbox mixes them.
func Interleaved(k, n int) []message.Message {
	run := rand.Text()[:6]
	batch := make([]message.Message, 0, k*n)
	for v := range n {
		for key := range k {
			batch = append(batch, Message(fmt.Sprintf("key-%s-%d", run, key), int64(v+1)))
		}
	}
	return batch
}
