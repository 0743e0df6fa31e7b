package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/message"
)

// Reader reads topics as they stand, from end to end and without a group, for those who check what became of messages. It
// changes nothing at the broker.
type Reader struct {
	cfg    Config
	client *client
	topics []string
}

// Log is one partition as it stands: what it holds lies from First to Last.
type Log struct {
	// Name is the partition as positions name it, such as "orders/3".
	Name string
	// First and Last are offsets; an empty partition's Last is below its First.
	First, Last int64
}

// Entry is a record at its place.
type Entry struct {
	Log    string
	Offset int64
	// StoredAt is the record's time: the producer's, or the broker's where the topic says so.
	StoredAt time.Time
	message.Record
}

// NewReader returns a reader that connects when it is first asked.
func NewReader(cfg Config, topics []string) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(topics) == 0 {
		return nil, errors.New("kafka: no topic is named")
	}
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Reader{cfg: cfg, client: c, topics: topics}, nil
}

// Close cuts the connections.
func (r *Reader) Close() { r.client.close() }

// Logs returns the partitions of all topics. Forgetful names a topic that drops messages before their time; empty where
// none does.
func (r *Reader) Logs(ctx context.Context) (logs []Log, forgetful string, err error) {
	found, err := r.client.look(ctx, r.topics...)
	if err != nil {
		return nil, "", err
	}
	for _, name := range r.topics {
		if err := usable(name, found[name]); err != nil {
			return nil, "", err
		}
		if strings.Contains(found[name].cleanup, "compact") {
			forgetful = name
		}
	}
	admin := kadm.NewClient(r.client.Client)
	starts, err := listed(admin.ListStartOffsets(ctx, r.topics...))
	if err != nil {
		return nil, "", stateError(r.client.dial, "look up where topics begin", err)
	}
	ends, err := listed(admin.ListCommittedOffsets(ctx, r.topics...))
	if err != nil {
		return nil, "", stateError(r.client.dial, "look up where topics end", err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		logs = append(logs, Log{
			Name: place{end.Topic, end.Partition}.String(), First: start.Offset, Last: end.Offset - 1,
		})
	})
	return logs, forgetful, nil
}

// Committed returns the offset up to which a group has seen everything, by partition; what it has read nothing of is left
// out.
func (r *Reader) Committed(ctx context.Context, group string) (map[string]int64, error) {
	offsets, err := kadm.NewClient(r.client.Client).FetchOffsetsForTopics(ctx, group, r.topics...)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, groupError(r.client.dial, group, err)
	}
	up := make(map[string]int64)
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.At > 0 {
			up[place{o.Topic, o.Partition}.String()] = o.At - 1
		}
	})
	return up, nil
}

// Read hands over everything that the partitions hold, each in its order. Patience bounds the wait for one record that is
// known to be there.
func (r *Reader) Read(ctx context.Context, logs []Log, patience time.Duration, take func(Entry) error) error {
	from := make(map[string]map[int32]kgo.Offset)
	last := make(map[place]int64)
	for _, log := range logs {
		at, err := placeOf(log.Name)
		if err != nil {
			return err
		}
		if log.Last < log.First {
			continue
		}
		if from[at.topic] == nil {
			from[at.topic] = make(map[int32]kgo.Offset)
		}
		from[at.topic][at.partition] = kgo.NewOffset().At(log.First)
		last[at] = log.Last
	}
	if len(last) == 0 {
		return nil
	}
	reading, err := newClient(r.cfg, kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	defer reading.close()
	for len(last) > 0 {
		if err := readSome(ctx, reading, last, patience, take); err != nil {
			return err
		}
	}
	return nil
}

// readSome reads what comes next and takes partitions out that are read to their last.
func readSome(
	ctx context.Context, c *client, last map[place]int64, patience time.Duration, take func(Entry) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fetches := c.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		return stateError(c.dial, "read topics", err)
	}
	var failure error
	fetches.EachRecord(func(record *kgo.Record) {
		at := place{record.Topic, record.Partition}
		end, wanted := last[at]
		if failure != nil || !wanted {
			return
		}
		if record.Offset >= end {
			delete(last, at)
		}
		if record.Attrs.IsControl() || record.Offset > end {
			return
		}
		failure = take(Entry{
			Log: at.String(), Offset: record.Offset, StoredAt: record.Timestamp, Record: recordOf(record),
		})
	})
	return failure
}

// placeOf reads the name of a partition.
func placeOf(name string) (place, error) {
	var at place
	topic, number, ok := strings.Cut(name, "/")
	if _, err := fmt.Sscanf(number, "%d", &at.partition); !ok || err != nil {
		return place{}, fmt.Errorf("%q is no partition", name)
	}
	at.topic = topic
	return at, nil
}
