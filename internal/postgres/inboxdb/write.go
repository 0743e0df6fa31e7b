package inboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verdict"
)

// part is whose statement one of a pipelined batch is.
type part uint8

const (
	bookkeeping part = iota
	burying          // keeps a dead letter
	handling         // the handler's
)

// writes is a pipelined batch that knows whose statement each is: an error means something else for each.
type writes struct {
	batch *pgx.Batch
	parts []part
	texts map[string]part // of those that are not bookkeeping
}

func newWrites() *writes { return &writes{batch: &pgx.Batch{}, texts: make(map[string]part)} }

func (w *writes) queue(sql string, args ...any) { w.add(bookkeeping, sql, args...) }

func (w *writes) add(p part, sql string, args ...any) {
	if p != bookkeeping {
		w.texts[sql] = p
	}
	w.parts = append(w.parts, p)
	w.batch.Queue(sql, args...)
}

// send runs the batch. A dead letter that cannot be written is told apart, since nothing may be acknowledged then, and so
// is an error of the handler's, which is about one of the messages.
func (w *writes) send(ctx context.Context, tx pgx.Tx) (err error) {
	if len(w.parts) == 0 {
		return nil
	}
	results := tx.SendBatch(ctx, w.batch)
	defer func() {
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
	}()
	for _, p := range w.parts {
		if _, err := results.Exec(); err != nil {
			return w.blame(p, err)
		}
	}
	return nil
}

// blame says whose error it is. One of parsing comes before any statement runs, and names its statement itself.
func (w *writes) blame(p part, err error) error {
	if parsing, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok {
		p = w.texts[parsing.SQL()]
	}
	switch p {
	case burying:
		return unburied(err)
	case handling:
		return &handlerError{err}
	default:
		return err
	}
}

// unburied says what an error of a dead letter's insert means.
func unburied(err error) error {
	class, reason, state := postgres.Classify(err)
	switch {
	case state == "", class == postgres.ClassRetry, class == postgres.ClassUnknown, class == postgres.ClassShutdown:
		return err
	default:
		return &verdict.Trouble{
			Kind: verdict.DeadLetterUnavailable, Reason: string(reason), Code: state,
			Text: "a dead letter cannot be written: " + postgres.SafeError(err), Err: err,
		}
	}
}

// write writes everything that a batch decided but the handler's statements.
func (s *Store) write(ctx context.Context, tx pgx.Tx, b *verdict.Batch) error {
	w, err := s.queueDecisions(ctx, tx, b)
	if err != nil {
		return err
	}
	return doing("write decisions", w.send(ctx, tx))
}

// queueDecisions makes the statements that write what a batch decided.
func (s *Store) queueDecisions(ctx context.Context, tx pgx.Tx, b *verdict.Batch) (*writes, error) {
	if err := s.findLate(ctx, tx, b); err != nil {
		return nil, doing("look up skipped versions", err)
	}
	b.Finish()
	w := newWrites()
	var sources, ids, outcomes []string
	for i, d := range b.Decisions() {
		it := b.Items()[i]
		switch d.Action {
		case verdict.Park:
			s.queuePark(w, it, d.Failure)
		case verdict.Bury:
			s.queueBury(w, it, d.Reason, 1, nil)
		case verdict.Undecided, verdict.Repeat, verdict.Apply, verdict.Skip:
		}
		if b.IsFresh(i) && d.Action != verdict.Apply && d.Action != verdict.Undecided {
			sources, ids, outcomes = append(
				sources,
				it.Source,
			), append(
				ids,
				it.EventID,
			), append(
				outcomes,
				d.Action.Outcome(),
			)
		}
	}
	if len(ids) > 0 {
		w.queue(s.sql.outcomes, s.consumer, sources, ids, outcomes)
	}
	s.queueChanges(w, b.Changes())
	return w, nil
}

// findLate tells versions that were given up on purpose from conflicts.
func (s *Store) findLate(ctx context.Context, tx pgx.Tx, b *verdict.Batch) error {
	var hashes []verdict.Hash
	var versions []int64
	var places []int32
	for i, d := range b.Decisions() {
		if d.Reason == deadletter.VersionConflict {
			it := b.Items()[i]
			hashes, versions = append(hashes, it.Key), append(versions, it.AggregateVersion)
			places = append(places, int32(i))
		}
	}
	late, err := s.late(ctx, tx, hashes, versions, places)
	for _, i := range late {
		b.Late(int(i))
	}
	return err
}

func (s *Store) late(
	ctx context.Context, tx pgx.Tx, hashes []verdict.Hash, versions []int64, places []int32,
) ([]int32, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, s.sql.late, uuids(hashes), versions, places)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}

// queueChanges writes keys; most only move on.
func (s *Store) queueChanges(w *writes, changes []verdict.Change) {
	var plain, other []verdict.Change
	for _, c := range changes {
		if c.Plain() {
			plain = append(plain, c)
		} else {
			other = append(other, c)
		}
	}
	if len(plain) > 0 {
		hashes, versions := make([][16]byte, len(plain)), make([]int64, len(plain))
		for i, c := range plain {
			hashes[i], versions[i] = c.Hash, c.Last
		}
		w.queue(s.sql.advance, hashes, versions)
	}
	if len(other) == 0 {
		return
	}
	n := len(other)
	hashes, versions, pauses := make([][16]byte, n), make([]int64, n), make([]int64, n)
	states, dues := make([]string, n), make([]string, n)
	for i, c := range other {
		hashes[i], versions[i], states[i] = c.Hash, c.Last, string(rune(c.State))
		dues[i], pauses[i] = dueLetter(c.Due.Kind), c.Due.After.Microseconds()
	}
	w.queue(s.sql.changeKeys, hashes, versions, states, dues, pauses)
}

func dueLetter(k verdict.DueKind) string {
	switch k {
	case verdict.DueNever:
		return "N"
	case verdict.DueAfter:
		return "A"
	default:
		return "K"
	}
}

// queuePark keeps a message with everything that is needed to decide it again.
func (s *Store) queuePark(w *writes, it *verdict.Item, f *verdict.Failure) {
	attempts, failed := 0, f != nil
	var code *string
	var pause *int64 // NULL: the key says when
	if failed {
		code = &f.Code
		if f.Class == deadletter.Message {
			attempts = 1
		}
		if !it.Keyed {
			pause = new(f.Pause.Microseconds())
		}
	}
	w.queue(
		s.sql.park,
		s.consumer,
		it.Source,
		it.EventID,
		it.Type,
		keyOf(it),
		it.Stream,
		it.OrderingKey,
		versionOf(
			it,
		),
		it.Record.Key,
		notNull(it.Record.Body),
		deadletter.EncodeHeaders(it.Record.Headers),
		it.Digest[:],
		it.Position,
		attempts,
		failed,
		code,
		pause,
	)
}

// burial is what is known of a parked message that becomes a dead letter.
type burial struct {
	code        string
	firstFailed *time.Time
}

// queueBury keeps a dead letter.
func (s *Store) queueBury(w *writes, it *verdict.Item, reason deadletter.Reason, attempts int, known *burial) {
	f := deadletter.Failure{
		Origin: deadletter.Consumer, OriginName: s.consumer, Envelope: it.Envelope, Record: it.Record,
		Destination: it.Stream, Position: it.Position, Digest: it.Digest, Reason: reason, Attempts: attempts,
	}
	var first *time.Time
	if known != nil {
		f.Code, first = known.code, known.firstFailed
	}
	if it.Refusal != nil && it.Refusal.Reason == reason {
		f.Detail = it.Refusal.Detail
	}
	f = f.Storable()
	e := &f.Envelope
	var occurred *time.Time
	if !e.OccurredAt.IsZero() {
		occurred = &e.OccurredAt
	}
	w.add(
		burying,
		s.sql.bury,
		string(f.Origin),
		f.OriginName,
		e.Source,
		e.EventID,
		e.Type,
		e.SchemaVersion,
		e.OrderingKey,
		versionOf(it),
		f.Destination,
		f.Record.Key,
		notNull(f.Record.Body),
		deadletter.EncodeHeaders(f.Record.Headers),
		e.ContentType,
		e.Traceparent,
		occurred,
		f.Position,
		f.Digest[:],
		string(reason),
		orNull(f.Code),
		orNull(f.Detail),
		f.Attempts,
		first,
	)
}

func keyOf(it *verdict.Item) *[16]byte {
	if !it.Keyed {
		return nil
	}
	h := [16]byte(it.Key)
	return &h
}

func versionOf(it *verdict.Item) *int64 {
	if it.AggregateVersion == 0 {
		return nil
	}
	return &it.AggregateVersion
}

// notNull keeps an empty body apart from none.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
