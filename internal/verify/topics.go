package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/broker/kafka"
)

// copyTopics copies topics of Kafka, each partition a log, or says why their content proves nothing.
func (s *session) copyTopics(
	ctx context.Context, source Stream, acked map[string]uint64,
) (unchecked string, err error) {
	logs, forgetful, err := source.Kafka.Logs(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("look at %s: %w", source.Name, err)
	case forgetful != "":
		return fmt.Sprintf("topic %s is compacted and keeps only the newest messages of a key", forgetful), nil
	}
	for _, log := range logs {
		up := int64(-1)
		if last, known := acked[log.Name]; known {
			up = bigint(last)
		}
		if err := s.addLog(ctx, log.Name, log.First, log.Last, up); err != nil {
			return "", err
		}
	}
	var rows [][]any
	flush := func() error {
		err := s.copyRows(ctx, pgx.CopyFromRows(rows))
		rows = rows[:0]
		return err
	}
	err = source.Kafka.Read(ctx, logs, streamTimeout, func(e kafka.Entry) error {
		rows = append(rows, recordRow(e.Log, e.Offset, e.StoredAt, &e.Record))
		if len(rows) < chunkRows {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", source.Name, err)
	}
	return "", nil
}

// lookAtGroup reads how far a group has acknowledged the topics.
func (c Consumer) lookAtGroup(ctx context.Context) (duties, error) {
	committed, err := c.Stream.Kafka.Committed(ctx, c.Durable)
	if err != nil {
		return duties{}, fmt.Errorf("look at group %s: %w", c.Durable, err)
	}
	d := duties{known: true, acked: make(map[string]uint64, len(committed))}
	for log, offset := range committed {
		d.acked[log] = uint64(max(offset, 0))
	}
	return d, nil
}
