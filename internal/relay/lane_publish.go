package relay

import (
	"context"
	"slices"
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

// publishAhead sends the rows that were read ahead, as far as their units take any.
func (l *lane) publishAhead(ctx context.Context, now, deadline time.Time) {
	rows, keep, wait := l.admit(now, deadline, l.ahead)
	if _, all := l.r.rest(now); all { // to move the whole backlog behind gates would let nothing through
		keep, wait = append(keep, wait...), nil
	}
	l.ahead, l.kept = keep, len(keep) > 0
	l.putAside(now, wait)
	if len(rows) == 0 {
		return
	}
	l.publish(ctx, now, deadline, rows, func(answered time.Time, b *batch) {
		if b == nil { // what was read ahead may be of the same keys: it must not be sent before these
			l.mem.forget(append(rows, l.ahead...))
			l.ahead = nil
			return
		}
		l.learn(ctx, answered, b)
		l.count(answered, b)
		v := judge(b, l.ahead, l.facts(), l)
		l.doubt(answered, b)
		l.ahead = v.ahead
		l.suffer(ctx, answered, v.outages)
		if len(v.done) > 0 {
			l.settle(v.done, v.places)
		}
		if len(v.refused) > 0 {
			l.tellRefused(ctx, v.refused)
			l.refuse(answered, v.refused, v.hold)
		}
		l.mem.forget(v.forget)
	})
}

// admit parts rows into those that may be sent now, those that are sent once it is known whether their unit works again,
// which one message tries, and those whose unit takes none. Nothing of a key is sent after a row that is not.
func (l *lane) admit(now, deadline time.Time, rows []shard.Row) (send, keep, wait []shard.Row) {
	within := deadline.Sub(now) + l.r.config().QueryTimeout
	ok, probe := l.r.units.try(l.r.config().Unit, now, within)
	switch {
	case !ok:
		return nil, rows, nil
	case probe:
		l.tries = append(l.tries, l.r.config().Unit)
		send, keep = l.probe(rows)
		return send, keep, nil
	case l.r.router == nil:
		return rows, nil, nil
	}
	closed := make(map[string]bool) // by key; true: its first row is on its way as a probe
	takes := make(map[string]bool)  // by unit
	for i := range rows {
		unit, key := l.r.unit(&rows[i]), l.mem.key(&rows[i])
		probing, isClosed := closed[key]
		if _, asked := takes[unit]; !asked && !isClosed {
			ok, probe := l.r.units.try(unit, now, within)
			takes[unit] = ok && !probe
			if probe {
				l.tries = append(l.tries, unit)
				closed[key] = true
				send = append(send, rows[i])
				continue
			}
		}
		switch {
		case probing:
			keep = append(keep, rows[i])
		case isClosed || !takes[unit]:
			closed[key] = false
			wait = append(wait, rows[i])
		default:
			send = append(send, rows[i])
		}
	}
	return send, keep, wait
}

// probe chooses the row that tries whether the broker is there, the first of its key: rather one of a unit that is not
// known to fail, and none that got no answer before, or a message that never gets one would keep the broker closed.
func (l *lane) probe(rows []shard.Row) (send, keep []shard.Row) {
	at, best := 0, 0
	seen := make(map[string]bool)
	for i := range rows {
		key := l.mem.key(&rows[i])
		if seen[key] {
			continue
		}
		seen[key] = true
		_, unsure := l.unsure[rows[i].ID]
		worth := 0
		if !unsure {
			worth += 2
		}
		if !l.r.units.fails(l.r.unit(&rows[i])) {
			worth++
		}
		if worth > best {
			at, best = i, worth
		}
	}
	return rows[at : at+1 : at+1], slices.Concat(rows[:at], rows[at+1:])
}

// facts are what this lane judges by.
func (l *lane) facts() facts {
	return facts{unordered: l.mem.unordered, unsure: l.unsure, unit: l.r.unit, broker: l.r.config().Unit}
}

// works implements witnesses.
func (l *lane) works(r *shard.Row) bool {
	outage, _ := l.r.units.state(l.r.unit(r))
	return outage == nil
}

// otherGotThrough implements witnesses.
func (l *lane) otherGotThrough(r *shard.Row, after time.Time) bool {
	return l.r.units.witness(l.r.unit(r), l.mem.key(r), after)
}

// tellRefused names what the broker refuses, one line a batch: the status shows only that something waits.
func (l *lane) tellRefused(ctx context.Context, refused []refusal) {
	if len(refused) == 0 {
		return
	}
	first := &refused[0]
	l.log.WarnContext(ctx, "Messages refused", "batchSize", len(refused), "reason", string(first.reason),
		"eventID", first.row.ID.String(), "attempt", first.row.Attempts+1)
}

// publishDue sends held rows of keys whose wait is over, as many retries as the unit's share of them allows.
func (l *lane) publishDue(ctx context.Context, now, deadline time.Time) {
	work := l.due
	rows, keep, wait := l.admit(now, deadline, work.rows)
	work.rows = keep
	l.postpone(l.delays(work.gates(wait), l.unitWait(now, wait)))
	rows, denied := l.afford(now, work, rows)
	l.postpone(denied)
	if len(rows) == 0 {
		l.tried()
		l.finishDue(now)
		return
	}
	work.sending = true
	l.publish(ctx, now, deadline, rows, func(answered time.Time, b *batch) {
		if b != nil {
			l.learn(ctx, answered, b)
			v := judgeDue(b, work, l.facts(), l)
			l.doubt(answered, b)
			l.suffer(ctx, answered, v.outages)
			l.settleDue(v)
			l.tellRefused(ctx, v.refused)
			l.refuseDue(answered, v.refused, v.gates)
			l.postpone(l.delays(v.postpone, 0))
			work.drop(v.gates, v.postpone)
		} else {
			work.rows = nil
		}
		work.sending = false
		l.finishDue(answered)
	})
}

// afford leaves out retries that are more than their unit's share, and says how long their keys wait. Nothing of a key is
// sent after a row that waits. A row that tries whether its unit works again is sent in any case: nobody else tries
// meanwhile.
func (l *lane) afford(now time.Time, work *dueWork, rows []shard.Row) (send []shard.Row, denied []shard.Delay) {
	cfg := l.r.config()
	closed := make(map[string]bool)
	for i := range rows {
		r := &rows[i]
		gate, unit := work.gateOf[r.ID], l.r.unit(r)
		switch {
		case closed[gate]:
		case !r.Failed, l.r.units.spare(unit, cfg.Share, now), l.r.units.fails(unit), l.r.units.fails(cfg.Unit):
			send = append(send, *r)
		default:
			closed[gate] = true
			turn := l.r.units.turn(unit, cfg.Share, now, cfg.Backoff.Max)
			denied = append(denied, shard.Delay{Gate: gate, Wait: turn + l.pause(1)})
		}
	}
	work.rows = slices.DeleteFunc(work.rows, func(r shard.Row) bool { return closed[work.gateOf[r.ID]] })
	return send, denied
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
	l.publishing, l.carried = true, carriedBytes(rows)
	cfg := l.r.config()
	held := broker.Fence{Shard: l.lease.Shard, Term: l.lease.Term}
	l.call(callPublish, deadline.Sub(now)+cfg.QueryTimeout, func() func(time.Time) {
		source, err := l.r.tableSource(ctx, rows[0].Source)
		if err != nil {
			return func(answered time.Time) {
				l.publishing, l.carried = false, 0
				l.restReads(answered)
				l.failed(ctx, "source", err)
				then(answered, nil)
				l.tried()
			}
		}
		b := screen(rows, source, cfg.Unordered)
		b.began = l.r.now()
		if len(b.send) > 0 {
			sending, cancel := context.WithDeadline(broker.WithFence(ctx, held), deadline)
			b.answer(l.r.send(sending, b.send))
			cancel()
		}
		took := l.r.now().Sub(b.began)
		return func(answered time.Time) {
			l.publishing, l.carried = false, 0
			l.r.health.succeeded(l.name + " source")
			l.r.metrics.published(cfg.Broker, b, took)
			if len(b.send) > 0 {
				l.r.pace.published(answered, took, cfg.Batch.PublishTimeout)
			}
			then(answered, b)
			l.tried()
		}
	})
}

// tried lets others try the units that this lane tried. Where that has told nothing, they may at once: a refused message
// says neither that a unit works nor that it fails. Else they wait for the next pause to end, no longer for this try.
func (l *lane) tried() {
	if len(l.tries) == 0 {
		return
	}
	for _, unit := range l.tries {
		l.r.units.tried(unit)
	}
	l.tries = l.tries[:0]
	l.r.nudge()
}

// carriedBytes is what rows have in memory of what a batch is bounded by.
func carriedBytes(rows []shard.Row) (sum int64) {
	for i := range rows {
		sum += int64(len(rows[i].Payload))
		if rows[i].Headers != nil {
			sum += int64(rows[i].HeadersSize)
		}
	}
	return sum
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

// learn remembers who got through, for the witness rule.
func (l *lane) learn(ctx context.Context, now time.Time, b *batch) {
	cfg := l.r.config()
	through := b.successes(l.facts())
	for _, s := range through {
		if l.r.units.succeeded(s.unit, success{key: s.key, at: b.began}, now) {
			l.r.log.InfoContext(ctx, "Broker takes messages again", "destination", cfg.Destination, "unit", s.unit)
			l.r.poke()
		}
	}
	if len(through) > 0 {
		l.r.totals.published(now, b)
	}
	if l.r.router != nil {
		l.learnWhole(ctx, now, b, through)
	}
}

// doubt remembers which messages got no answer, for the next time that they are judged.
func (l *lane) doubt(now time.Time, b *batch) {
	for i := range b.got {
		switch b.got[i].Outcome {
		case broker.Unknown:
			if len(l.unsure) >= maxUnsure {
				clear(l.unsure) // a message that is forgotten counts as new: that errs towards the environment
			}
			l.unsure[b.rows[i].ID] = doubt{at: now, times: l.unsure[b.rows[i].ID].times + 1}
		case broker.Confirmed:
			if len(l.unsure) > 0 {
				delete(l.unsure, b.rows[i].ID)
			}
		default:
		}
	}
}

// learnWhole ends the pause of a broker of several parts: who answers for one of them is there.
func (l *lane) learnWhole(ctx context.Context, now time.Time, b *batch, got []through) {
	whole, recovered := l.r.config().Unit, false
	if len(got) > 0 {
		recovered = l.r.units.succeeded(whole, success{key: got[0].key, at: b.began}, now)
	} else if slices.ContainsFunc(b.got, func(c broker.Confirmation) bool { return c.Answered() }) {
		recovered = l.r.units.answered(whole, now)
	}
	if recovered {
		l.r.log.InfoContext(ctx, "Broker answers again", "destination", l.r.config().Destination, "unit", whole)
		l.r.poke()
	}
}

// count counts the confirmed messages of a batch as fresh traffic, which retries are a share of.
func (l *lane) count(now time.Time, b *batch) {
	by := make(map[string]int, 1)
	for i := range b.rows {
		if b.took(i) {
			by[l.r.unit(&b.rows[i])]++
		}
	}
	for unit, n := range by {
		l.r.units.fresh(unit, l.r.config().Share, now, n)
	}
}

// suffer pauses the units that failed.
func (l *lane) suffer(ctx context.Context, now time.Time, failed outages) {
	cfg := l.r.config()
	for unit, why := range failed {
		if l.r.units.failed(unit, why, now, cfg.Backoff, l.r.random()) {
			l.r.log.WarnContext(ctx, "Broker takes no messages", "destination", cfg.Destination, "unit", unit,
				"reason", string(why.Reason), "detail", why.Detail)
		}
	}
	if _, all := failed[cfg.Unit]; all {
		l.dropDue(now)
	}
}
