package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/bench"
)

// arrivals is what has come to the topic since it was emptied.
type arrivals struct {
	client *kgo.Client
	broker string

	mu    sync.Mutex
	since kadm.Offsets
}

func (a *arrivals) topic() bench.Topic {
	return bench.Topic{Empty: a.empty, Count: a.count, Read: a.read}
}

func (a *arrivals) ends(ctx context.Context) (kadm.ListedOffsets, error) {
	ends, err := kadm.NewClient(a.client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look at the topic: %w", err)
	}
	return ends, nil
}

func (a *arrivals) empty(ctx context.Context) error {
	if err := emptyKafka(ctx, kadm.NewClient(a.client)); err != nil {
		return err
	}
	ends, err := a.ends(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since = ends.Offsets()
	return nil
}

// begin is where the records start that count.
func (a *arrivals) begin() kadm.Offsets {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since
}

func (a *arrivals) count(ctx context.Context) (int, error) {
	ends, err := a.ends(ctx)
	if err != nil {
		return 0, err
	}
	return arrived(a.begin(), ends.Offsets()), nil
}

// arrived counts the records from one set of offsets to another.
func arrived(from, to kadm.Offsets) int {
	var n int64
	to.Each(func(o kadm.Offset) {
		start, _ := from.Lookup(o.Topic, o.Partition)
		n += o.At - start.At
	})
	return int(n)
}

func (a *arrivals) read(ctx context.Context, take func(payload []byte) error) error {
	ends, err := a.ends(ctx)
	if err != nil {
		return err
	}
	left := arrived(a.begin(), ends.Offsets())
	reader, err := kgo.NewClient(kgo.SeedBrokers(a.broker), kgo.ConsumePartitions(a.begin().KOffsets()))
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer reader.Close()
	for left > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read the topic: %w", err)
		}
		var refused error
		fetches.EachRecord(func(r *kgo.Record) {
			refused = errors.Join(refused, take(r.Value))
			left--
		})
		if refused != nil {
			return refused
		}
	}
	return nil
}
