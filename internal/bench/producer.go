package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/message"
)

// produce sends as many messages as the table would have, of the same form.
func produce(ctx context.Context, t *table) (time.Duration, error) {
	messages := make([]message.Message, t.cfg.Rows)
	padding := strings.Repeat("x", t.cfg.PayloadBytes-payloadFrame)
	now := time.Now()
	for i := range messages {
		payload := fmt.Appendf(nil, `{"order":"%012d","note":"%s"}`, i, padding)
		messages[i] = message.Message{
			Type:          "order.paid",
			SchemaVersion: 1,
			Source:        "bench",
			OrderingKey:   fmt.Sprintf("order-%d", i%t.cfg.Keys),
			AggregateVersion: int64(
				i/t.cfg.Keys + 1,
			),
			ContentType: "application/json",
			Payload:     payload,
			Size:        len(payload),
			OccurredAt:  now,
		}
		_, _ = rand.Read(messages[i].ID[:]) // never fails
	}
	started := time.Now()
	if err := t.cfg.Destination.Produce(ctx, messages); err != nil {
		return 0, fmt.Errorf("produce: %w", err)
	}
	return time.Since(started), nil
}
