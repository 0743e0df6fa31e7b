package inboxdb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verdict"
)

// Apply decides messages, runs the handler's statements of those whose turn it is and commits. It returns one decision a
// message, in the order given: Undecided where nothing was written, so that the message must stay where it is. Beside an
// error, which is a *verdict.Trouble, decisions that are not Undecided are committed all the same.
//
// All statements run as one batch. When one fails, all are rolled back and run again one by one, so that only the message
// that fails is parked, with its key.
func (s *Store) Apply(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error) {
	none := make([]verdict.Decision, len(items))
	if err := s.addKeys(ctx, job, items); err != nil {
		return none, trouble(err, len(items))
	}
	var b *verdict.Batch
	err := s.inTx(ctx, job.HandlerTimeout+overhead, func(ctx context.Context, tx pgx.Tx) error {
		b = verdict.NewBatch(job.Rules, items)
		return s.together(ctx, tx, job, b)
	})
	switch {
	case err == nil:
		return b.Decisions(), nil
	case job.Apart && (suspicious(err) || refuses(err)): // what is behind a refused message may be suspicious
		return s.apart(ctx, job, items)
	case refuses(err):
		return s.oneByOne(ctx, job, items)
	default:
		return none, trouble(err, len(items))
	}
}

// handlerError marks an error of the handler's statements.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return "handler: " + e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// statementClass says how an error of a handler's statement counts.
func statementClass(err error) (class deadletter.Class, state string) {
	known, _, state := postgres.Classify(err)
	switch {
	case known == postgres.ClassRetry:
		return deadletter.Retry, state
	case state == "": // no answer of the server's
		return deadletter.Environment, ""
	default:
		return deadletter.ClassifyStatement(state), state
	}
}

// refuses says whether the error is about one of the messages, which running them one by one finds out. A constraint that
// is checked at COMMIT fails there.
func refuses(err error) bool {
	var handler *handlerError
	var commit *commitError
	if !errors.As(err, &handler) && !errors.As(err, &commit) {
		return false
	}
	class, _ := statementClass(err)
	return class == deadletter.Message || class == deadletter.Ambiguous
}

// together runs a whole batch at once.
func (s *Store) together(ctx context.Context, tx pgx.Tx, job verdict.Job, b *verdict.Batch) error {
	if err := s.prepare(ctx, tx, job, b); err != nil {
		return err
	}
	var effects []*verdict.Statement
	for i, it := range b.Items() {
		if d := b.Decide(i); d.Action == verdict.Apply {
			effects = append(effects, it.Statement)
		}
	}
	w, err := s.queueDecisions(ctx, tx, b)
	if err != nil {
		return err
	}
	if len(effects) > 0 { // behind our own statements, which the handler's bound is not for
		w.queue(statementTimeoutSQL, milliseconds(job.HandlerTimeout))
	}
	for _, e := range effects {
		w.add(handling, e.SQL, e.Args...)
	}
	return doing("write decisions and effects", w.send(ctx, tx))
}

// prepare locks the keys and puts the ids into the inbox.
func (s *Store) prepare(ctx context.Context, tx pgx.Tx, job verdict.Job, b *verdict.Batch) error {
	if err := s.lockKeys(ctx, tx, job.Wait, b); err != nil {
		return doing("lock keys", err)
	}
	if err := s.remember(ctx, tx, b); err != nil {
		return doing("insert into the inbox", err)
	}
	return nil
}

// addKeys makes the rows of keys that this process has not seen. A key that another process is just adding is left out:
// it is not waited for longer than a moment, and its messages stay in the lane.
func (s *Store) addKeys(ctx context.Context, job verdict.Job, items []*verdict.Item) error {
	missing := s.seen.missing(verdict.NewBatch(job.Rules, items).Hashes())
	if len(missing) == 0 {
		return nil
	}
	err := s.insertKeys(ctx, missing)
	if _, reason, _ := postgres.Classify(err); reason != postgres.ReasonLockTimeout {
		return doing("add keys", err)
	}
	for _, h := range missing {
		err := s.insertKeys(ctx, []verdict.Hash{h})
		if _, reason, _ := postgres.Classify(err); err != nil && reason != postgres.ReasonLockTimeout {
			return doing("add a key", err)
		}
	}
	return nil
}

func (s *Store) insertKeys(ctx context.Context, hashes []verdict.Hash) error {
	err := s.inTx(ctx, queryTimeout, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(addKeysSettingsSQL, strconv.Itoa(keyWait))
		batch.Queue(s.sql.addKeys, uuids(hashes), s.consumer)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err == nil {
		s.seen.know(hashes)
	}
	return err
}

// lockKeys takes the batch's keys: those that are free, or with wait those that become free within a moment.
func (s *Store) lockKeys(ctx context.Context, tx pgx.Tx, wait bool, b *verdict.Batch) error {
	hashes := b.Hashes()
	if len(hashes) == 0 {
		return nil
	}
	statement := s.sql.lockKeys
	if wait {
		statement = s.sql.waitKeys
		if _, err := tx.Exec(ctx, lockTimeoutSQL, strconv.Itoa(lockWait)); err != nil {
			return err
		}
	}
	got, err := collectKeys(tx.Query(ctx, statement, uuids(hashes)))
	if err != nil {
		return err
	}
	for h, k := range got {
		b.Got(h, k)
	}
	for _, h := range hashes {
		if _, locked := got[h]; !locked {
			s.seen.forget(h) // held by another process, or never committed by the one that was adding it
		}
	}
	if wait {
		_, err = tx.Exec(ctx, lockTimeoutSQL, "0") // what follows waits as long as it does for any batch
	}
	return err
}

func collectKeys(rows pgx.Rows, err error) (map[verdict.Hash]verdict.Key, error) {
	if err != nil {
		return nil, err
	}
	keys := make(map[verdict.Hash]verdict.Key)
	var h [16]byte
	var k verdict.Key
	var state string
	_, err = pgx.ForEachRow(rows, []any{&h, &k.Last, &state}, func() error {
		if len(state) != 1 {
			return fmt.Errorf("key state %q is not one letter", state)
		}
		k.State = verdict.State(state[0])
		keys[h] = k
		return nil
	})
	return keys, err
}

// errVanished says that an id was neither new nor there: a purge removed it in between. The next try sees it as new.
var errVanished = errors.New("an id left the inbox while it was looked up")

// remember puts the batch's ids into the inbox and compares those that are known.
func (s *Store) remember(ctx context.Context, tx pgx.Tx, b *verdict.Batch) error {
	candidates := b.Candidates()
	if len(candidates) == 0 {
		return nil
	}
	items := b.Items()
	var sources, ids []string
	var digests [][]byte
	place := make(map[verdict.ID]int, len(candidates))
	for _, i := range candidates {
		it := items[i]
		sources, ids, digests = append(sources, it.Source), append(ids, it.EventID), append(digests, it.Digest[:])
		place[it.Inbox()] = i
	}
	rows, err := tx.Query(ctx, s.sql.remember, s.consumer, sources, ids, digests)
	if err != nil {
		return err
	}
	var id verdict.ID
	_, err = pgx.ForEachRow(rows, []any{&id.Source, &id.EventID}, func() error {
		b.Fresh(place[id])
		delete(place, id)
		return nil
	})
	if err != nil || len(place) == 0 {
		return err
	}
	return s.compare(ctx, tx, b, place)
}

// compare reads the digests of ids that are known. See digestsSQL for why it is a statement of its own.
func (s *Store) compare(ctx context.Context, tx pgx.Tx, b *verdict.Batch, place map[verdict.ID]int) error {
	var sources, ids []string
	for id := range place {
		sources, ids = append(sources, id.Source), append(ids, id.EventID)
	}
	rows, err := tx.Query(ctx, s.sql.digests, s.consumer, sources, ids)
	if err != nil {
		return err
	}
	var id verdict.ID
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&id.Source, &id.EventID, &digest}, func() error {
		b.Known(place[id], digest)
		delete(place, id)
		return nil
	})
	if err == nil && len(place) > 0 {
		return &verdict.Trouble{
			Kind: verdict.Again, Reason: string(postgres.ReasonOther), Text: errVanished.Error(), Err: errVanished,
		}
	}
	return err
}

func uuids(hashes []verdict.Hash) [][16]byte {
	u := make([][16]byte, len(hashes))
	for i, h := range hashes {
		u[i] = h
	}
	return u
}

// milliseconds writes a duration as PostgreSQL's settings want it; never 0, which would mean no bound.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}
