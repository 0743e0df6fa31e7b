package bench

import (
	"bytes"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// Rows are the rows of an outbox: their payloads are numbered, so that each can be found again in a topic.
type Rows struct {
	// Count is their number; they belong to Keys ordering keys in turn.
	Count, Keys int
	// PayloadBytes is the length of a payload, at least minPayload.
	PayloadBytes int
}

const (
	payloadStart  = `{"order":"`
	payloadMiddle = `","note":"`
	payloadEnd    = `"}`
	numberDigits  = 12
)

// All yields the ordering key and the payload of each row, in the order of writing.
func (r Rows) All() iter.Seq2[string, string] {
	return func(yield func(key, payload string) bool) {
		rest := payloadMiddle + strings.Repeat("x", r.PayloadBytes-payloadFrame) + payloadEnd
		for i := range r.Count {
			if !yield("order-"+strconv.Itoa(i%r.Keys), fmt.Sprintf("%s%0*d%s", payloadStart, numberDigits, i, rest)) {
				return
			}
		}
	}
}

// tally notes which rows have arrived.
type tally struct {
	seen     []bool
	distinct int
}

// add notes a payload, and refuses what is none of the rows or has been there.
func (t *tally) add(payload []byte) error {
	number, ok := bytes.CutPrefix(payload[:min(len(payload), len(payloadStart)+numberDigits)], []byte(payloadStart))
	i, err := strconv.Atoi(string(number))
	switch {
	case !ok || err != nil || i < 0 || i >= len(t.seen):
		return fmt.Errorf("a record of %d bytes is none of the rows", len(payload))
	case t.seen[i]:
		return fmt.Errorf("row %d arrived twice", i)
	}
	t.seen[i] = true
	t.distinct++
	return nil
}
