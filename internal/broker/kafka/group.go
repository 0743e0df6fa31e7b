package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/broker"
)

const (
	// heartbeats is how many fit into a session.
	heartbeats = 10
	// rebalanceTimeout is how long the broker waits for each process to give partitions away; revokeWait is how long we
	// wait for what is handed out of them, and commitTimeout for the broker to keep an offset.
	rebalanceTimeout = 30 * time.Second
	revokeWait       = 10 * time.Second
	commitTimeout    = 5 * time.Second
	// commitDelay lets acknowledgements come together into one commit.
	commitDelay = 200 * time.Millisecond
	// pollStep bounds one wait for records, after which partitions are paused or resumed.
	pollStep = time.Second
	// errorPause is the pause after a fetch that brought errors only.
	errorPause = 200 * time.Millisecond

	fetchWait          = time.Second
	leastFetch         = 1 << 10
	mostFetch          = 50 << 20 // the broker's own bound, fetch.max.bytes, is 55 MiB
	mostPartitionFetch = 1 << 20
)

// fetch moves records from the library to the partitions, as long as there is room.
func (r *Receiver) fetch() {
	var paused map[place]bool
	for r.ctx.Err() == nil {
		paused = r.pause(paused)
		n, wait := r.free()
		if n == 0 {
			waitAtMost(r.ctx, r.room, wait)
			continue
		}
		ctx, cancel := context.WithTimeout(r.ctx, pollStep)
		fetches := r.client.PollRecords(ctx, n)
		cancel()
		came, failed := r.accept(fetches)
		r.client.AllowRebalance()
		if failed && !came {
			waitAtMost(r.ctx, nil, errorPause)
		}
	}
}

// free says how many records may come; where none may, when to look again at the latest. What waits for the end of a
// release does not count, so that it holds up no other partition.
func (r *Receiver) free() (n int, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	n = r.cfg.Prefetch
	bytes, some := 0, false
	for _, p := range r.parts {
		n -= p.out
		bytes += p.outBytes
		some = some || p.out > 0
		if p.blocked(now) {
			continue
		}
		n -= len(p.ready)
		some = some || len(p.ready) > 0
		for _, d := range p.ready {
			bytes += d.size
		}
	}
	if some && bytes >= r.cfg.PrefetchBytes {
		n = 0
	}
	return max(n, 0), pollStep
}

// pause keeps the library from fetching partitions that may not go on: those with a release whose time is not over, and
// those whose first unfinished record is too far behind. It returns which they are.
func (r *Receiver) pause(before map[place]bool) map[place]bool {
	r.mu.Lock()
	now := r.now()
	after := make(map[place]bool)
	for at, p := range r.parts {
		if p.blocked(now) || p.behind() >= int64(stretch*r.cfg.Prefetch) {
			after[at] = true
		}
	}
	r.mu.Unlock()
	r.client.ResumeFetchPartitions(without(before, after))
	r.client.PauseFetchPartitions(without(after, before))
	return after
}

// without returns those of a that are not in b, as the library takes them.
func without(a, b map[place]bool) map[string][]int32 {
	out := make(map[string][]int32)
	for at := range a {
		if !b[at] {
			out[at.topic] = append(out[at.topic], at.partition)
		}
	}
	return out
}

// accept takes what a poll brought, and says whether records came and whether there were errors.
func (r *Receiver) accept(fetches kgo.Fetches) (came, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		at := place{f.Topic, f.Partition}
		if f.Err != nil && r.refused(at, f.Err) {
			failed = true
		}
		if len(f.Records) == 0 {
			return
		}
		came = true
		p := r.part(at)
		if f.Records[0].Offset < p.next {
			// The log was cut, by a topic that was made again or a leader that had not everything: what is held of it is no more.
			p = newPartition(at)
			r.parts[at] = p
		}
		r.noteGap(p, f.LogStartOffset)
		p.err = nil
		for _, record := range f.Records {
			p.add(r, record)
		}
	})
	if came {
		r.health.group = nil
		r.wake()
		nudge(r.done)
	}
	return came, failed
}

// part returns the partition. The lock is held.
func (r *Receiver) part(at place) *partition {
	p := r.parts[at]
	if p == nil {
		p = newPartition(at)
		r.parts[at] = p
	}
	return p
}

// noteGap tells of messages that the broker deleted before they were read. The lock is held.
func (r *Receiver) noteGap(p *partition, start int64) {
	if p.next == unknownOffset || start <= p.next {
		return
	}
	detail := p.String() + " deleted " + strconv.FormatInt(start-p.next, 10) +
		" offsets before they were read: raise the topic's retention"
	r.note(broker.WarnMayDiscard, detail)
	r.log.WarnContext(r.ctx, "Messages were deleted before they were read", "detail", detail)
}

// refused notes an error that a poll brought, and says whether it is one. The lock is held.
func (r *Receiver) refused(at place, err error) bool {
	var session *kgo.ErrGroupSession
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled),
		errors.Is(err, kgo.ErrClientClosed):
		return false // nothing came in time
	case errors.As(err, &session):
		if !passing(session.Err) {
			r.health.group = groupError(r.client.dial, r.cfg.Group, session.Err)
		}
	case errors.As(err, &loss):
		r.log.WarnContext(r.ctx, "The log was cut behind what was read", "partition", at.String())
		return false
	case at.topic == "" || at.partition < 0:
		return false // the look at the topics tells
	default:
		r.part(at).err = partitionError(at, err)
		if errors.Is(err, kerr.UnknownTopicID) {
			r.health.renew[at.topic] = true
		}
	}
	r.wake()
	return true
}

// assigned notes partitions that are ours from now on. It is called at each rebalance, also where nothing came.
func (r *Receiver) assigned(_ context.Context, _ *kgo.Client, places map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	each(places, func(at place) { r.parts[at] = newPartition(at) })
	r.health.group = nil
	r.wake()
}

// revoked gives partitions away: nothing more of them is handed out, what is out is waited for, for a while, and what is
// finished by then is committed. The next process begins there.
func (r *Receiver) revoked(ctx context.Context, _ *kgo.Client, places map[string][]int32) {
	r.mu.Lock()
	each(places, func(at place) {
		if p := r.parts[at]; p != nil {
			p.leaving = true
		}
	})
	killed := r.killed
	r.mu.Unlock()
	if killed {
		return
	}
	r.awaitOut(places) //nolint:contextcheck // it ends with the receiver, whatever the library's context does
	r.commits.Lock()
	defer r.commits.Unlock()
	r.commit(ctx)
	r.forget(places)
}

// awaitOut waits until nothing of the partitions is handed out, at most revokeWait, and not at all once we are closing.
func (r *Receiver) awaitOut(places map[string][]int32) {
	ctx, cancel := context.WithTimeout(r.ctx, revokeWait)
	defer cancel()
	for ctx.Err() == nil {
		out := 0
		r.mu.Lock()
		each(places, func(at place) {
			if p := r.parts[at]; p != nil {
				out += p.out
			}
		})
		changed := r.changed
		r.mu.Unlock()
		if out == 0 {
			return
		}
		waitAtMost(ctx, changed, 0)
	}
}

// lost forgets partitions that another process may have by now: nothing is committed.
func (r *Receiver) lost(_ context.Context, _ *kgo.Client, places map[string][]int32) {
	r.commits.Lock() // what is on its way comes before the group is joined again
	defer r.commits.Unlock()
	r.forget(places)
}

func (r *Receiver) forget(places map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	each(places, func(at place) { delete(r.parts, at) })
	r.wake()
	nudge(r.room)
}

func each(places map[string][]int32, do func(place)) {
	for topic, partitions := range places {
		for _, partition := range partitions {
			do(place{topic, partition})
		}
	}
}

// offsetsFetched notes where the group stands. The partitions are ours by then.
func (r *Receiver) offsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	note := func(topic string, partition int32, offset int64) {
		p := r.parts[place{topic, partition}]
		if p != nil && p.next == unknownOffset && offset >= 0 {
			p.next, p.committed = offset, offset
		}
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			note(topic.Topic, p.Partition, p.Offset)
		}
	}
	for _, group := range resp.Groups {
		for _, topic := range group.Topics {
			for _, p := range topic.Partitions {
				note(topic.Topic, p.Partition, p.Offset)
			}
		}
	}
	return nil
}

// keepCommitting has the group keep what is acknowledged, a moment later.
func (r *Receiver) keepCommitting() {
	for {
		waitAtMost(r.ctx, r.done, 0)
		waitAtMost(r.ctx, nil, commitDelay)
		if r.ctx.Err() != nil {
			return // what is left is committed when the group is left
		}
		r.commits.Lock()
		ok := r.commit(r.ctx)
		r.commits.Unlock()
		if !ok {
			waitAtMost(r.ctx, nil, commitTimeout)
			nudge(r.done)
		}
	}
}

// commit has the group keep how far the partitions are finished, and says whether it does. The commits' lock is held.
func (r *Receiver) commit(ctx context.Context) bool {
	offsets := r.toCommit()
	if len(offsets) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	var failure error
	r.client.CommitOffsetsSync(ctx, offsets, func(
		_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error,
	) {
		failure = err
		if err == nil {
			failure = r.committed(offsets, req, resp)
		}
	})
	if failure != nil {
		r.log.DebugContext(ctx, "Offsets were not committed, trying again", "err", failure)
	}
	return failure == nil
}

func (r *Receiver) toCommit() map[string]map[int32]kgo.EpochOffset {
	r.mu.Lock()
	defer r.mu.Unlock()
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for at, p := range r.parts {
		to := p.position()
		if to == unknownOffset || to == p.committed {
			continue
		}
		if offsets[at.topic] == nil {
			offsets[at.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[at.topic][at.partition] = kgo.EpochOffset{Epoch: p.epoch, Offset: to}
	}
	return offsets
}

// committed notes what the broker keeps, and returns the first error among its answers. Newer brokers answer with a
// topic's id in place of its name.
func (r *Receiver) committed(
	offsets map[string]map[int32]kgo.EpochOffset, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse,
) (first error) {
	names := make(map[[16]byte]string, len(req.Topics))
	for _, topic := range req.Topics {
		names[topic.TopicID] = topic.Topic
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range resp.Topics {
		if topic.Topic == "" {
			topic.Topic = names[topic.TopicID]
		}
		for _, answer := range topic.Partitions {
			if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
				if first == nil {
					first = err
				}
				continue
			}
			if p := r.parts[place{topic.Topic, answer.Partition}]; p != nil {
				p.committed = offsets[topic.Topic][answer.Partition].Offset
			}
		}
	}
	return first
}

// watch looks at the topics from time to time: those that can be read are, those that are missing are waited for.
func (r *Receiver) watch() {
	reading := make(map[string]bool)
	for r.ctx.Err() == nil {
		pause := lookPeriod
		if !r.lookAround(reading) {
			pause = lookAgain
		}
		waitAtMost(r.ctx, nil, pause)
	}
}

// lookAround looks once and says whether all is well.
func (r *Receiver) lookAround(reading map[string]bool) bool {
	found, err := r.client.look(r.ctx, r.cfg.Topics...)
	if r.ctx.Err() != nil {
		return true
	}
	r.mu.Lock()
	r.health.look = asState(err)
	if err == nil {
		clear(r.health.topics)
		for _, name := range r.cfg.Topics {
			if e := asState(usable(name, found[name])); e != nil {
				r.health.topics[name] = e
			}
		}
	}
	away := maps.Clone(r.health.renew)
	clear(r.health.renew)
	for name := range r.health.topics {
		away[name] = true
	}
	r.wake()
	r.mu.Unlock()
	if err != nil {
		return false
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(r.cfg.Topics))) {
		switch {
		case !away[name] && !reading[name]:
			reading[name] = true
			r.client.AddConsumeTopics(name)
		case away[name] && reading[name]:
			delete(reading, name)
			r.client.PurgeTopicsFromConsuming(name)
		}
	}
	return len(away) == 0
}
