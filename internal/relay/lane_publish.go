package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/shard"
)

// maxUnsure bounds the messages a lane remembers as sent without an answer.
const maxUnsure = 1024

// beginPublish sends the next rows, if the lease surely holds for as long as that may take and the settle before the
// last one is done.
func (l *lane) beginPublish(ctx context.Context, now time.Time) {
	if l.publishing || len(l.writes) > 1 {
		return
	}
	deadline, ok := l.deadline(now)
	if !ok {
		return
	}
	dueReady := l.due != nil && len(l.due.rows) > 0
	switch {
	case dueReady && (l.dueNext || len(l.ahead) == 0):
		l.dueNext = false
		l.publishDue(ctx, now, deadline)
	case len(l.ahead) > 0:
		l.dueNext = true
		l.publishAhead(ctx, now, deadline)
	}
}

// publishAhead sends the rows that were read ahead.
func (l *lane) publishAhead(ctx context.Context, now, deadline time.Time) {
	rows := l.ahead
	l.ahead = nil
	l.publish(ctx, now, deadline, rows, func(answered time.Time, b *batch) {
		if b == nil { // what was read ahead may be of the same keys: it must not be sent before these
			l.mem.forget(append(rows, l.ahead...))
			l.ahead = nil
			return
		}
		v := judge(b, l.ahead, l.mem.unordered, l.unsure)
		l.ahead = v.ahead
		l.learn(ctx, answered, b, v.outage)
		if len(v.done) > 0 {
			l.settle(v.done, v.places)
		}
		if len(v.refused) > 0 {
			l.tellRefused(ctx, v.refused)
			l.refuse(v.refused, v.hold)
		}
		l.mem.forget(v.forget)
	})
}

// tellRefused names what the broker refuses, one line a batch: the status shows only that something waits.
func (l *lane) tellRefused(ctx context.Context, refused []refusal) {
	if len(refused) == 0 {
		return
	}
	first := &refused[0]
	l.log.WarnContext(ctx, "Messages refused", "batchSize", len(refused), "reason", string(first.reason),
		"eventId", first.row.ID.String(), "attempt", first.row.Attempts+1)
}

// publishDue sends held rows of keys whose wait is over.
func (l *lane) publishDue(ctx context.Context, now, deadline time.Time) {
	work := l.due
	rows := work.rows
	work.rows, work.sending = nil, true
	l.publish(ctx, now, deadline, rows, func(answered time.Time, b *batch) {
		if b != nil {
			outage, _ := l.r.units.state(l.r.config().Unit)
			v := judgeDue(b, work, l.unsure, outage == nil)
			l.learn(ctx, answered, b, v.outage)
			l.settleDue(v)
			l.tellRefused(ctx, v.refused)
			l.refuseDue(v.refused, v.gates)
			l.postpone(v.postpone)
		}
		work.sending = false
		l.finishDue(answered)
	})
}

// deadline returns until when a publish may run: no longer than the lease can be trusted. It refuses when so little of
// that is left that the publish could hardly end in time; the renewal comes first then.
func (l *lane) deadline(now time.Time) (time.Time, bool) {
	cfg := l.r.config()
	remaining := l.lease.Remaining(now)
	if remaining < min(l.batch.PublishTimeout, (cfg.LeaseDuration-cfg.LeaseMargin)/4) {
		return time.Time{}, false
	}
	return now.Add(min(l.batch.PublishTimeout, remaining)), true
}

// publish sends rows beside the lane, and answers itself for rows that are never sent. then gets no batch when nothing
// was sent, since the table's source could not be read.
func (l *lane) publish(
	ctx context.Context, now, deadline time.Time, rows []shard.Row, then func(answered time.Time, b *batch),
) {
	l.publishing = true
	cfg := l.r.config()
	l.call(callPublish, deadline.Sub(now)+cfg.QueryTimeout, func() func(time.Time) {
		source, err := l.r.tableSource(ctx, rows[0].Source)
		if err != nil {
			return func(answered time.Time) {
				l.publishing = false
				l.restReads(answered)
				l.failed(ctx, "source", err)
				then(answered, nil)
			}
		}
		b := screen(rows, source, cfg.Unordered)
		began := l.r.now()
		if len(b.send) > 0 {
			sending, cancel := context.WithDeadline(ctx, deadline)
			b.answer(l.r.send(sending, b.send))
			cancel()
		}
		took := l.r.now().Sub(began)
		return func(answered time.Time) {
			l.publishing = false
			l.r.health.succeeded(l.name + " source")
			l.r.metrics.published(cfg.Broker, b, took)
			then(answered, b)
		}
	})
}

// send hands messages to the broker's client under recover: a panic is the failure of the message that causes it, not
// of its neighbours. Which one that is shows when each is sent alone.
func (r *Relay) send(ctx context.Context, batch []message.Message) []broker.Confirmation {
	got, panicked := r.trySend(ctx, batch)
	if !panicked {
		return got
	}
	got = make([]broker.Confirmation, len(batch))
	closed := make(map[string]struct{})
	unordered := r.config().Unordered
	for i := range batch {
		row := shard.Row{Message: batch[i]}
		key := keyOf(&row, unordered)
		if _, ok := closed[key]; ok {
			got[i] = broker.Confirmation{Outcome: broker.Unavailable, Reason: broker.ReasonNotSent}
			continue
		}
		one, panicked := r.trySend(ctx, batch[i:i+1])
		switch {
		case panicked:
			got[i] = broker.Confirmation{Outcome: broker.Rejected, Reason: broker.ReasonPanic}
		case len(one) == 1:
			got[i] = one[0]
		}
		if got[i].Outcome != broker.Confirmed {
			closed[key] = struct{}{}
		}
	}
	return got
}

func (r *Relay) trySend(ctx context.Context, batch []message.Message) (got []broker.Confirmation, panicked bool) {
	defer func() {
		if cause := recover(); cause != nil {
			got, panicked = nil, true
			r.log.ErrorContext(ctx, "Broker client panicked", "batchSize", len(batch))
		}
	}()
	return r.publisher.Publish(ctx, batch), false
}

// learn remembers what a batch's answers say about the unit and about single messages.
func (l *lane) learn(ctx context.Context, now time.Time, b *batch, outage broker.Confirmation) {
	cfg := l.r.config()
	if anyConfirmed(b.got) {
		l.r.totals.published(now, b)
		if l.r.units.succeeded(cfg.Unit) {
			l.r.log.InfoContext(ctx, "Broker takes messages again", "destination", cfg.Destination)
		}
	}
	if outage.Reason != "" {
		l.dropDue(now)
		if l.r.units.failed(cfg.Unit, outage, now, cfg.Backoff, l.r.random()) {
			l.r.log.WarnContext(ctx, "Broker takes no messages", "destination", cfg.Destination,
				"reason", string(outage.Reason), "detail", outage.Detail)
		}
	}
	for i := range b.got {
		switch b.got[i].Outcome {
		case broker.Unknown:
			if len(l.unsure) >= maxUnsure {
				clear(l.unsure) // a message that is forgotten counts as new: that errs towards the environment
			}
			l.unsure[b.rows[i].ID] = struct{}{}
		case broker.Confirmed:
			if len(l.unsure) > 0 {
				delete(l.unsure, b.rows[i].ID)
			}
		default:
		}
	}
}
