package consumer

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// gate reads records into items. It is pure but for the handler it asks.
type gate struct {
	name     string
	perKey   bool
	maxBytes int64
	handler  Handler
}

// admit reads a record. It always returns an item: one that can never be applied says why, and keeps the record's bytes.
// A panic is the record's fault, not its neighbours' (contract R6).
func (g gate) admit(r message.Record, position string) (it *verdict.Item) {
	defer func() {
		if recover() != nil {
			it = unreadable(
				r,
				position,
				verdict.Refusal{Reason: deadletter.Panic, Detail: "reading the message failed"},
			)
		}
	}()
	e, err := message.Decode(&r)
	if err != nil {
		return unreadable(r, position, refusal(err))
	}
	it = &verdict.Item{
		Envelope: e,
		Record:   r,
		Position: position,
		Digest:   message.Digest(e.Type, e.OrderingKey, e.Data),
	}
	if g.perKey {
		it.Keyed, it.Key = true, verdict.KeyHash(g.name, e.Source, e.Stream, e.OrderingKey)
	}
	switch {
	case int64(len(r.Body)) > g.maxBytes:
		it.Refusal = &verdict.Refusal{
			Reason: deadletter.PayloadTooLarge,
			Detail: "the body is larger than validation.maxBytes",
		}
	case e.Type != message.SkippedType: // a marker only advances its key
		it.Statement, it.Refusal = g.handler.Route(&it.Envelope)
	}
	return it
}

// refusal says why a record cannot be decoded, in the codec's own words, which hold no value.
func refusal(err error) verdict.Refusal {
	r := verdict.Refusal{Reason: deadletter.InvalidEnvelope, Detail: err.Error()}
	switch reason, _ := message.ReasonOf(err); reason {
	case message.TooLarge:
		r.Reason = deadletter.PayloadTooLarge
	case message.UnstorableText:
		r.Reason = deadletter.UnstorableText
	default:
	}
	return r
}

// unreadable makes an item of a record without a readable envelope. Its id is made of the record's place and bytes: a
// redelivery is the same dead letter, another record is another.
func unreadable(r message.Record, position string, why verdict.Refusal) *verdict.Item {
	h := sha256.New()
	h.Write(r.Key)
	h.Write([]byte{0})
	h.Write(deadletter.EncodeHeaders(r.Headers))
	h.Write(r.Body)
	it := &verdict.Item{Record: r, Position: position, Refusal: &why}
	h.Sum(it.Digest[:0])
	it.EventID = "unreadable:" + deadletter.Text(position, 256) + ":" + hex.EncodeToString(it.Digest[:8])
	it.Type, it.SchemaVersion = "", 0
	return it
}
