package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/message"
)

// produce sends as many messages as the table would have, of the same form.
func produce(ctx context.Context, t *table) (time.Duration, error) {
	rows := Rows{t.cfg.Rows, t.cfg.Keys, t.cfg.PayloadBytes}
	messages := make([]message.Message, 0, rows.Count)
	now := time.Now()
	for key, payload := range rows.All() {
		m := message.Message{
			Type: "order.paid", SchemaVersion: 1, Source: "bench", OrderingKey: key,
			AggregateVersion: int64(len(messages)/rows.Keys + 1), ContentType: "application/json",
			Payload: []byte(payload), Size: len(payload), OccurredAt: now,
		}
		_, _ = rand.Read(m.ID[:]) // never fails
		messages = append(messages, m)
	}
	started := time.Now()
	if err := t.cfg.Destination.Produce(ctx, messages); err != nil {
		return 0, fmt.Errorf("produce: %w", err)
	}
	return time.Since(started), nil
}
