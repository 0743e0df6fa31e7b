package verify

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
)

// Queue is a RabbitMQ queue. What it holds cannot be read without being taken: in place of its content stands what the
// relays that publish to RabbitMQ say they published, and of the queue itself only how much waits in it is known.
type Queue struct {
	Name string
	// Waiting returns how many messages no consumer has been given.
	Waiting func(ctx context.Context) (int64, error)
	// Bindings say which messages it gets; nil where the resource does not say it.
	Bindings []Binding
	// Outboxes are those of the relays that publish to its virtual host.
	Outboxes []Outbox
}

// Binding says which messages of a topic exchange a queue gets: see config.Binding.
type Binding struct{ Exchange, RoutingKey string }

// Outbox is a relay's tables, of which the archive is read.
type Outbox struct {
	Pool   *pgxpool.Pool
	Tables postgres.Names
}

// gets says whether a queue with the bindings gets a message that was published at the position, as the archive keeps
// it: exchange/routing-key#confirmation.
func gets(bindings []Binding, position string) bool {
	exchange, rest, found := strings.Cut(position, "/")
	end := strings.LastIndexByte(rest, '#')
	if !found || end < 0 {
		return false
	}
	words := strings.Split(rest[:end], ".")
	return slices.ContainsFunc(bindings, func(b Binding) bool {
		return b.Exchange == exchange && matches(strings.Split(b.RoutingKey, "."), words)
	})
}

// matches says whether a topic exchange's pattern takes a routing key: * is one word, # any number.
func matches(pattern, words []string) bool {
	if len(pattern) == 0 {
		return len(words) == 0
	}
	if pattern[0] == "#" {
		return matches(pattern[1:], words) || len(words) > 0 && matches(pattern, words[1:])
	}
	return len(words) > 0 && (pattern[0] == "*" || pattern[0] == words[0]) && matches(pattern[1:], words[1:])
}

// copyArchives copies what was published to the queue, as far as the bindings say it, else all that was published.
func (s *session) copyArchives(ctx context.Context, q *Queue) (streamCopy, error) {
	if err := s.createCopy(ctx); err != nil {
		return streamCopy{}, err
	}
	if len(q.Outboxes) == 0 {
		return streamCopy{unchecked: "no relay among the resources publishes to the queue's virtual host, and what a " +
			"RabbitMQ queue holds cannot be read without being taken"}, nil
	}
	for _, o := range q.Outboxes {
		rows, err := o.Pool.Query(ctx, o.Tables.SQL(archiveSQL))
		if err != nil {
			return streamCopy{}, fmt.Errorf("read the archive: %w", err)
		}
		archive := &archiveSource{rows: rows, queue: q.Name, bindings: q.Bindings}
		for err == nil && !archive.over {
			archive.chunk = 0
			err = s.copyRows(ctx, archive)
		}
		rows.Close()
		if err != nil {
			return streamCopy{}, fmt.Errorf("read the archive: %w", err)
		}
	}
	if _, err := s.conn.Exec(ctx, indexCopySQL); err != nil {
		return streamCopy{}, fmt.Errorf("index the copy of the archive: %w", err)
	}
	return streamCopy{}, nil
}

// archiveSQL reads what a relay published to RabbitMQ.
const archiveSQL = `
SELECT position, published_at, event_id::text, source, event_type, destination, ordering_key, aggregate_version, payload,
       broker_position
FROM {outbox_published} WHERE broker_position LIKE '%/%#%'`

// archiveSource feeds an archive's rows to COPY, a chunk at a time.
type archiveSource struct {
	rows     pgx.Rows
	queue    string
	bindings []Binding
	over     bool
	chunk    int
	row      []any
	err      error
}

// Next implements pgx.CopyFromSource.
func (a *archiveSource) Next() bool {
	for a.err == nil && a.chunk < chunkRows {
		if !a.rows.Next() {
			a.over, a.err = true, a.rows.Err()
			return false
		}
		var at time.Time
		var position int64
		var id, source, kind, destination, key, place string
		var version *int64
		var payload []byte
		a.err = a.rows.Scan(&position, &at, &id, &source, &kind, &destination, &key, &version, &payload, &place)
		if a.err != nil || (a.bindings != nil && !gets(a.bindings, place)) {
			continue
		}
		body, digest := sha256.Sum256(payload), message.Digest(kind, key, payload)
		a.row = []any{a.queue, position, at, id, source, kind, destination, key, version, body[:], digest[:]}
		a.chunk++
		return true
	}
	return false
}

// Values implements pgx.CopyFromSource.
func (a *archiveSource) Values() ([]any, error) { return a.row, nil }

// Err implements pgx.CopyFromSource.
func (a *archiveSource) Err() error { return a.err }

// againstQueue compares the inbox with what was published, and says what waits in the queue.
func (s *session) againstQueue(
	ctx context.Context,
	c Consumer,
	grace time.Duration,
	copied streamCopy,
) ([]Check, error) {
	const unknown = "the resource does not say what the queue is bound to: topology: Declare with bindings does"
	results, err := leftInQueue(ctx, c.Queue, grace)
	if err != nil {
		return nil, err
	}
	acked := check{promise: "G5", title: "everything acknowledged has an outcome or a dead letter"}
	results = append(results, notChecked([]check{acked}, "RabbitMQ does not tell what was acknowledged")...)
	scope := []any{c.ConsumerName, c.Retention.Seconds(), int64(0), "-infinity"}
	handled := check{
		"G1", fmt.Sprintf("everything that was published to the queue has an outcome after %s", grace), handledSQL,
		append(scope, grace.Seconds()),
	}
	digest := check{"G5", "every outcome is that of the message that was published", digestSQL, []any{c.ConsumerName}}
	switch {
	case copied.unchecked != "":
		return append(results, notChecked([]check{handled, digest}, copied.unchecked)...), nil
	case c.Queue.Bindings == nil:
		results = append(results, notChecked([]check{handled}, unknown)...)
		found, err := s.run(ctx, []check{digest})
		return append(results, found...), err
	}
	found, err := s.run(ctx, []check{handled, digest})
	return append(results, found...), err
}

// leftInQueue judges what waits. How long a message waits is not known: with a grace the queue need not be empty.
func leftInQueue(ctx context.Context, q *Queue, grace time.Duration) ([]Check, error) {
	n, err := q.Waiting(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at queue %s: %w", q.Name, err)
	}
	left := Check{Promise: "G1", Title: "nothing is left in the queue", Result: Kept, Looked: n}
	switch {
	case n > 0 && grace == 0:
		left.Result, left.Broken = Broken, n
		left.First = fmt.Sprintf("%d messages wait in queue %s", n, q.Name)
	case n > 0:
		left.leave(fmt.Sprintf("%d messages wait in the queue, nobody tells for how long: with --grace 0s "+
			"it has to be empty", n))
	}
	return []Check{left}, nil
}
