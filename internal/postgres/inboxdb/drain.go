package inboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// parkedRow is a parked message as it was read back.
type parkedRow struct {
	verdict.Parked
	sequence int64
}

// Drain takes one key that is due, or one message without a key, and handles what is parked of it, in order, as far as it
// is ready. Any process may do so: the key's lock decides who does. admit reads a record again, as when it came.
func (s *Store) Drain(
	ctx context.Context, job verdict.Job, admit func(record message.Record, position string) *verdict.Item,
) (verdict.Drained, error) {
	d := &drain{Store: s, job: job, admit: admit}
	for _, step := range []func(context.Context, pgx.Tx) error{d.dueKey, d.dueMessage} {
		d.done = verdict.Drained{}
		err := s.inTx(ctx, 2*job.HandlerTimeout+overhead, step)
		switch {
		case err == nil:
		case refuses(err): // at COMMIT: what was said of statements one by one holds for it too
			err = d.again(ctx, step, err, failure)
		case job.Apart && suspicious(err): // or this message would be the first that is due for ever
			err = d.again(ctx, step, err, ambiguous)
		}
		if err != nil {
			return verdict.Drained{}, trouble(err, 1)
		}
		if d.done.Found {
			return d.done, nil
		}
	}
	return verdict.Drained{}, nil
}

// drain is one transaction over parked messages.
type drain struct {
	*Store
	job   verdict.Job
	admit func(record message.Record, position string) *verdict.Item
	done  verdict.Drained
	// preset tells how a statement is known to fail: that of the message presetOf, or the first where that is 0; nil where
	// none is.
	preset   func(attempts int, failing time.Duration) *verdict.Failure
	presetOf int64
	running  int64 // the message whose statement runs
}

// again repeats a transaction that could not commit for its statements: the one that was running is the cause, or else
// the first is taken to be.
func (d *drain) again(
	ctx context.Context, step func(context.Context, pgx.Tx) error, cause error,
	fails func(job verdict.Job, cause error, attempts int, failing time.Duration) *verdict.Failure,
) error {
	d.done = verdict.Drained{}
	d.presetOf, d.running = d.running, 0
	d.preset = func(attempts int, failing time.Duration) *verdict.Failure {
		return fails(d.job, cause, attempts, failing)
	}
	defer func() { d.preset = nil }()
	return d.inTx(ctx, 2*d.job.HandlerTimeout+overhead, step)
}

// dueKey drains the key that is due for the longest time.
func (d *drain) dueKey(ctx context.Context, tx pgx.Tx) error {
	keys, err := collectKeys(tx.Query(ctx, d.sql.dueKey, d.consumer))
	if err != nil {
		return doing("look for a due key", err)
	}
	for h, k := range keys { // one at most
		d.done.Found = true
		return d.key(ctx, tx, h, k)
	}
	return nil
}

func (d *drain) key(ctx context.Context, tx pgx.Tx, h verdict.Hash, k verdict.Key) error {
	rows, err := d.parked(ctx, tx, h)
	if err != nil {
		return doing("read parked messages", err)
	}
	var failed *verdict.Failure
	end := d.now().Add(d.job.HandlerTimeout)
	for _, row := range rows {
		decision, skipped := d.job.Rules.DecideParked(k, row.Parked)
		if decision.Action == verdict.Undecided {
			break
		}
		if skipped != nil {
			if err := d.skip(ctx, tx, h, *skipped); err != nil {
				return doing("skip versions", err)
			}
			k.Last = skipped.To
		}
		if decision, err = d.handle(ctx, tx, row, decision); err != nil {
			return err
		}
		d.done.Decisions = append(d.done.Decisions, decision)
		k = d.job.Rules.After(k, row.Item, decision)
		failed = decision.Failure
		if failed != nil || k.State == verdict.Blocked || d.now().After(end) {
			break
		}
	}
	return d.close(ctx, tx, h, k, failed)
}

// close writes what the key waits for now.
func (d *drain) close(ctx context.Context, tx pgx.Tx, h verdict.Hash, k verdict.Key, failed *verdict.Failure) error {
	statement := d.sql.leftBySequence
	if d.job.Rules.Versions == verdict.Enforce {
		statement = d.sql.leftByVersion
	}
	left := &verdict.Left{}
	var waited int64
	err := tx.QueryRow(ctx, statement, [16]byte(h)).Scan(&left.Version, &waited)
	if errors.Is(err, pgx.ErrNoRows) {
		left, err = nil, nil
	}
	if err != nil {
		return doing("look at what stays parked", err)
	}
	if left != nil {
		left.Waited = time.Duration(waited) * time.Microsecond
	}
	w := newWrites()
	d.queueChanges(w, []verdict.Change{d.job.Rules.AfterDrain(h, k, failed, left)})
	return doing("write the key", w.send(ctx, tx))
}

func (d *drain) skip(ctx context.Context, tx pgx.Tx, h verdict.Hash, r verdict.Skipped) error {
	d.done.Skipped++
	_, err := tx.Exec(ctx, d.sql.skip, [16]byte(h), r.From, r.To, d.consumer)
	return err
}

func (d *drain) parked(ctx context.Context, tx pgx.Tx, h verdict.Hash) ([]parkedRow, error) {
	statement := d.sql.parkedBySequence
	if d.job.Rules.Versions == verdict.Enforce {
		statement = d.sql.parkedByVersion
	}
	rows, err := tx.Query(ctx, statement, [16]byte(h), maxDrain, maxDrainBytes)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, d.scan(&h))
}

// dueMessage handles one parked message without a key.
func (d *drain) dueMessage(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, d.sql.dueParked, d.consumer)
	if err != nil {
		return doing("look for a due message", err)
	}
	found, err := pgx.CollectRows(rows, d.scan(nil))
	if err != nil {
		return doing("read a due message", err)
	}
	for _, row := range found { // one at most
		d.done.Found = true
		decision, _ := d.job.Rules.DecideParked(verdict.Key{}, row.Parked)
		if decision, err = d.handle(ctx, tx, row, decision); err != nil {
			return err
		}
		d.done.Decisions = append(d.done.Decisions, decision)
	}
	return nil
}

// scan reads a row of parkedColumns. What the inbox knows of the message is taken from the row, not from its bytes: a
// newer program may read those another way.
func (d *drain) scan(h *verdict.Hash) func(pgx.CollectableRow) (parkedRow, error) {
	return func(r pgx.CollectableRow) (parkedRow, error) {
		var p parkedRow
		var id verdict.ID
		var record message.Record
		var headers, digest []byte
		var position string
		var keyed bool
		var waited, failing int64
		err := r.Scan(
			&p.sequence,
			&id.Source,
			&id.EventID,
			&keyed,
			&record.Key,
			&record.Body,
			&headers,
			&digest,
			&position,
			&p.Attempts,
			&waited,
			&failing,
		)
		if err != nil {
			return p, err
		}
		if record.Headers, err = deadletter.DecodeHeaders(headers); err != nil {
			return p, err
		}
		p.Item = d.admit(record, position)
		p.Source, p.EventID, p.Keyed = id.Source, id.EventID, keyed
		copy(p.Digest[:], digest)
		if h != nil {
			p.Key = *h
		}
		p.Waited, p.Failing = time.Duration(waited)*time.Microsecond, time.Duration(failing)*time.Microsecond
		return p, nil
	}
}

// handle carries a decision out. The outcome flips before the statement runs: a message that was applied before, whoever
// did it, is only removed.
func (d *drain) handle(
	ctx context.Context,
	tx pgx.Tx,
	row parkedRow,
	decision verdict.Decision,
) (verdict.Decision, error) {
	if decision.Action == verdict.Apply {
		failed, repeated, err := d.apply(ctx, tx, row)
		switch {
		case err != nil:
			return decision, err
		case failed != nil:
			return verdict.Decision{Action: verdict.Park, Failure: failed}, d.failAgain(ctx, tx, row, failed)
		case repeated:
			decision.Action = verdict.Repeat
		}
		return decision, nil
	}
	if decision.Reason == deadletter.VersionConflict {
		late, err := d.late(ctx, tx, []verdict.Hash{row.Key}, []int64{row.AggregateVersion}, []int32{0})
		if err != nil {
			return decision, doing("look up skipped versions", err)
		}
		if len(late) > 0 {
			decision.Reason = deadletter.LateVersion
		}
	}
	w := newWrites()
	if decision.Action == verdict.Bury {
		d.queueBury(w, row.Item, decision.Reason, row.Attempts+1, nil)
	}
	w.queue(d.sql.flip, d.consumer, row.Source, row.EventID, row.Digest[:], decision.Action.Outcome())
	w.queue(d.sql.unpark, row.sequence)
	return decision, doing("write a parked message's end", w.send(ctx, tx))
}

// apply runs a parked message's statement, with the flip of its outcome in the same savepoint.
func (d *drain) apply(
	ctx context.Context,
	tx pgx.Tx,
	row parkedRow,
) (failed *verdict.Failure, repeated bool, err error) {
	attempts := row.Attempts + 1
	if d.preset != nil && (d.presetOf == 0 || d.presetOf == row.sequence) {
		failed = d.preset(attempts, row.Failing)
		d.preset = nil
		return failed, false, nil
	}
	if _, err := tx.Exec(ctx, savepointSQL); err != nil {
		return nil, false, err
	}
	tag, err := tx.Exec(ctx, d.sql.flip, d.consumer, row.Source, row.EventID, row.Digest[:], verdict.Apply.Outcome())
	if err != nil {
		return nil, false, doing("flip the outcome", err)
	}
	if tag.RowsAffected() == 1 {
		if failed, err = d.timed(ctx, tx, row, attempts); err != nil || failed != nil {
			return failed, false, err
		}
	}
	w := newWrites()
	w.queue(releaseSQL)
	w.queue(d.sql.unpark, row.sequence)
	return nil, tag.RowsAffected() == 0, doing("remove a parked message", w.send(ctx, tx))
}

// timed runs a parked message's statement under the handler's bound.
func (d *drain) timed(ctx context.Context, tx pgx.Tx, row parkedRow, attempts int) (*verdict.Failure, error) {
	if _, err := tx.Exec(ctx, statementTimeoutSQL, milliseconds(d.job.HandlerTimeout)); err != nil {
		return nil, err
	}
	d.running = row.sequence
	failed, err := d.statement(ctx, tx, d.job, row.Statement, attempts, row.Failing)
	if err != nil {
		return nil, err
	}
	d.running = 0
	if failed != nil {
		return failed, nil // the savepoint's end took the bound back as well
	}
	_, err = tx.Exec(ctx, resetTimeoutSQL)
	return nil, err
}

// failAgain writes a further failure. A failure that cannot tell whether the message is the cause counts no attempt.
func (d *drain) failAgain(ctx context.Context, tx pgx.Tx, row parkedRow, f *verdict.Failure) error {
	attempts := row.Attempts
	if f.Class == deadletter.Message {
		attempts++
	}
	var pause *int64
	if !row.Keyed {
		pause = new(f.Pause.Microseconds())
	}
	_, err := tx.Exec(ctx, d.sql.failParked, row.sequence, attempts, orNull(f.Code), pause)
	return doing("write a failure", err)
}
