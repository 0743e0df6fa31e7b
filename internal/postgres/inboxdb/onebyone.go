package inboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/verdict"
)

// savepoint holds one message's statement, so that its failure leaves the others alone.
const (
	savepointSQL  = `SAVEPOINT postrider_message`
	immediateSQL  = `SET CONSTRAINTS ALL IMMEDIATE` // what would fail at COMMIT fails here, where it has a name
	releaseSQL    = `RELEASE SAVEPOINT postrider_message`
	rollbackToSQL = `ROLLBACK TO SAVEPOINT postrider_message`
)

// oneByOne runs messages in transactions of at most maxSavepoints, each message in a savepoint. A key of which a message
// stayed undecided is left alone from then on: nothing may pass it.
func (s *Store) oneByOne(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error) {
	decisions := make([]verdict.Decision, len(items))
	held := make(map[verdict.Hash]bool)
	for next := 0; next < len(items); {
		places := make([]int, 0, maxSavepoints)
		for ; next < len(items) && len(places) < maxSavepoints; next++ {
			if it := items[next]; !it.Keyed || !held[it.Key] {
				places = append(places, next)
			}
		}
		part := pick(items, places)
		got, cut, err := s.savepoints(ctx, job, part, nil)
		if err != nil && refuses(err) { // at COMMIT, in spite of everything: find out which, with one a transaction
			got, cut, err = s.singly(ctx, job, part)
		}
		for i, d := range got {
			decisions[places[i]] = d
			if d.Action == verdict.Undecided && part[i].Keyed {
				held[part[i].Key] = true
			}
		}
		if err != nil {
			return decisions, trouble(err, len(part))
		}
		if cut {
			break // out of time: what is left comes in the lane's next batch
		}
	}
	return decisions, nil
}

func pick(items []*verdict.Item, places []int) []*verdict.Item {
	part := make([]*verdict.Item, len(places))
	for i, p := range places {
		part[i] = items[p]
	}
	return part
}

// singly runs the first message alone. If it is the one that fails at COMMIT, it counts as failed without being run.
func (s *Store) singly(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, bool, error) {
	got, _, err := s.savepoints(ctx, job, items[:1], nil)
	if err != nil && refuses(err) {
		got, _, err = s.savepoints(ctx, job, items[:1], failure(job, err, 1, 0))
	}
	return got, true, err
}

// failure says how a statement's failure is written down.
func failure(job verdict.Job, err error, attempts int, failing time.Duration) *verdict.Failure {
	class, state := statementClass(err)
	return &verdict.Failure{Class: class, Code: state, Pause: job.Pause(attempts, failing)}
}

// savepoints runs messages in one transaction. With preset the first statement is not run but counts as failed so.
func (s *Store) savepoints(
	ctx context.Context, job verdict.Job, items []*verdict.Item, preset *verdict.Failure,
) (decisions []verdict.Decision, cut bool, err error) {
	var b *verdict.Batch
	err = s.inTx(ctx, 2*job.HandlerTimeout+overhead, func(ctx context.Context, tx pgx.Tx) error {
		b = verdict.NewBatch(job.Rules, items)
		if err := s.prepare(ctx, tx, job, b); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, statementTimeoutSQL, milliseconds(job.HandlerTimeout)); err != nil {
			return err
		}
		end := s.now().Add(job.HandlerTimeout)
		for i, it := range items {
			if i > 0 && s.now().After(end) {
				cut = true
				return s.cutShort(ctx, tx, b, i)
			}
			if b.Decide(i).Action != verdict.Apply {
				continue
			}
			if preset != nil {
				b.Fail(i, *preset)
				preset = nil
				continue
			}
			failed, err := s.inSavepoint(ctx, tx, job, it.Statement)
			if err != nil {
				return err
			}
			if failed != nil {
				b.Fail(i, *failed)
			}
		}
		return s.finish(ctx, tx, b)
	})
	if err != nil {
		return nil, cut, err
	}
	return b.Decisions(), cut, nil
}

// finish writes what was decided, with our own time-out again.
func (s *Store) finish(ctx context.Context, tx pgx.Tx, b *verdict.Batch) error {
	if _, err := tx.Exec(ctx, resetTimeoutSQL); err != nil {
		return err
	}
	return s.write(ctx, tx, b)
}

// cutShort ends a transaction that has taken its time before message i: what follows was put into the inbox and has to
// leave it again.
func (s *Store) cutShort(ctx context.Context, tx pgx.Tx, b *verdict.Batch, i int) error {
	var sources, ids []string
	for _, left := range b.Candidates() {
		if left >= i && b.IsFresh(left) {
			it := b.Items()[left]
			sources, ids = append(sources, it.Source), append(ids, it.EventID)
		}
	}
	if len(ids) > 0 {
		if _, err := tx.Exec(ctx, s.sql.forget, s.consumer, sources, ids); err != nil {
			return err
		}
	}
	return s.finish(ctx, tx, b)
}

// inSavepoint runs one statement in a savepoint of its own.
func (s *Store) inSavepoint(
	ctx context.Context, tx pgx.Tx, job verdict.Job, st *verdict.Statement,
) (*verdict.Failure, error) {
	if _, err := tx.Exec(ctx, savepointSQL); err != nil {
		return nil, err
	}
	failed, err := s.statement(ctx, tx, job, st, 1, 0)
	if err != nil || failed != nil {
		return failed, err
	}
	_, err = tx.Exec(ctx, releaseSQL)
	return nil, err
}

// statement runs a handler's statement within a savepoint. It returns how the statement failed, the savepoint being
// rolled back then, or an error that ends the transaction.
func (s *Store) statement(
	ctx context.Context, tx pgx.Tx, job verdict.Job, st *verdict.Statement, attempts int, failing time.Duration,
) (*verdict.Failure, error) {
	batch := &pgx.Batch{}
	batch.Queue(st.SQL, st.Args...)
	batch.Queue(immediateSQL)
	err := tx.SendBatch(ctx, batch).Close()
	if err == nil {
		return nil, nil
	}
	if class, _ := statementClass(err); class != deadletter.Message && class != deadletter.Ambiguous {
		return nil, &handlerError{err}
	}
	if _, back := tx.Exec(ctx, rollbackToSQL); back != nil {
		return nil, errors.Join(back, err)
	}
	return failure(job, err, attempts, failing), nil
}
