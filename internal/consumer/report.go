package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/verdict"
)

// Condition types and reasons, as api/v1alpha1 describes them. The planes share words, not code.
const (
	databaseReachable     = "DatabaseReachable"
	schemaReady           = "SchemaReady"
	sourceReachable       = "SourceReachable"
	consumerNameInUse     = "ConsumerNameInUse"
	deadLetterUnavailable = "DeadLetterUnavailable"

	reasonReachable   = "Reachable"
	reasonCurrent     = "SchemaCurrent"
	reasonStarting    = "Starting"
	reasonInUse       = "InUse"
	reasonStatement   = "StatementInvalid"
	reasonPrivileged  = "OverPrivilegedRole"
	reasonNotReported = "NotReported"

	yes, no, unknown = "True", "False", "Unknown"
)

const (
	// reportTimeout bounds the counts of a report; without them they are unknown.
	reportTimeout = 3 * time.Second
	// rateWindow is the least time over which a rate is told.
	rateWindow = time.Second
)

// Lagger is what a Receiver may also be: one that knows what its source holds.
type Lagger interface {
	// Lag returns what the broker holds for this consumer and has not seen acknowledged.
	Lag(ctx context.Context) (broker.Lag, error)
}

// counters are what this process has done.
type counters struct {
	mu         sync.Mutex
	applied    int64
	duplicates int64
	last       time.Time // by the monotonic clock
	rateFrom   time.Time
	rateBase   int64
	rate       *int64
}

// decided counts one committed decision.
func (c *Consumer) decided(d verdict.Decision) {
	c.metrics.decided(d)
	c.counters.mu.Lock()
	defer c.counters.mu.Unlock()
	switch d.Action {
	case verdict.Apply:
		c.counters.applied++
		c.counters.last = c.now()
	case verdict.Repeat:
		c.counters.duplicates++
	default:
	}
}

// health is what is known of database, tables and source.
type health struct {
	mu        sync.Mutex
	open      bool
	openErr   error
	sourceOK  bool
	sourceErr error
	troubles  map[string]*verdict.Trouble // by loop
}

// opened notes the end of a look at tables and name, and says whether it is news.
func (h *health) opened(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news = !same(h.openErr, err) || (err == nil) != h.open
	h.open, h.openErr = err == nil, err
	if err == nil {
		clear(h.troubles)
	}
	return news
}

// source notes how receiving went, and says whether it is news.
func (h *health) source(err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news = !same(h.sourceErr, err)
	h.sourceOK, h.sourceErr = h.sourceOK || err == nil, err
	return news
}

func same(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// troubled notes that a loop cannot go on, and logs it once.
func (c *Consumer) troubled(ctx context.Context, loop string, t *verdict.Trouble) {
	h := &c.health
	h.mu.Lock()
	before := h.troubles[loop]
	h.troubles[loop] = t
	h.mu.Unlock()
	if before == nil || before.Reason != t.Reason || before.Kind != t.Kind {
		c.log.WarnContext(ctx, "Messages wait for the database", "reason", t.Reason, "kind", t.Kind.String(), "err", t)
	}
}

// healed notes that a loop goes on.
func (c *Consumer) healed(loop string) {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	delete(c.health.troubles, loop)
}

// Report says how the consumer stands. A count that cannot be taken now is absent.
func (c *Consumer) Report(ctx context.Context) (statusz.Consumer, []statusz.Condition) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	r := statusz.Consumer{Source: c.cfg().Source}
	counts, err := c.store.Counts(ctx)
	if err == nil {
		r.Parked, r.Gaps, r.BlockedKeys = &counts.Parked, &counts.Gaps, &counts.BlockedKeys
		r.DeadLetters = &statusz.Count{Open: counts.DeadLetters, OldestTime: counts.OldestDeadLetter}
	}
	c.count(&r, counts.At)
	if lagger, can := c.receiver.(Lagger); can {
		if lag, err := lagger.Lag(ctx); err == nil {
			r.Lag = &statusz.Lag{Messages: lag.Messages, OldestMessageTime: lag.OldestTime}
			c.metrics.lags(lag, c.now())
		}
	}
	return r, c.conditions(err)
}

// count fills in what this process counts itself. The time of the last effect is told by the database's clock.
func (c *Consumer) count(r *statusz.Consumer, at time.Time) {
	n := &c.counters
	n.mu.Lock()
	defer n.mu.Unlock()
	r.AppliedTotal, r.DuplicatesTotal = n.applied, n.duplicates
	now := c.now()
	if !n.last.IsZero() && !at.IsZero() {
		last := at.Add(-now.Sub(n.last)).Truncate(time.Millisecond)
		r.LastAppliedTime = &last
	}
	if passed := now.Sub(n.rateFrom); passed >= rateWindow {
		if !n.rateFrom.IsZero() {
			n.rate = new(int64(float64(n.applied-n.rateBase) / passed.Seconds()))
		}
		n.rateFrom, n.rateBase = now, n.applied
	}
	r.AppliedPerSec = n.rate
}

// conditions says what is right and wrong. countErr is why the counts could not be taken.
func (c *Consumer) conditions(countErr error) []statusz.Condition {
	h := &c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	cs := c.opening(h.open, h.openErr)
	if h.open {
		cs = []statusz.Condition{
			{Type: databaseReachable, Status: yes, Reason: reasonReachable},
			{Type: schemaReady, Status: yes, Reason: reasonCurrent},
		}
	}
	var t *verdict.Trouble
	if h.open && errors.As(countErr, &t) && t.Kind != verdict.Stopping {
		blame(cs, t)
	}
	for _, loop := range slices.Sorted(maps.Keys(h.troubles)) {
		t := h.troubles[loop]
		if t.Kind == verdict.DeadLetterUnavailable {
			cs = append(
				cs,
				statusz.Condition{Type: deadLetterUnavailable, Status: yes, Reason: t.Reason, Message: t.Text},
			)
			break
		}
		blame(cs, t)
	}
	return append(cs, sourceCondition(h.sourceOK, h.sourceErr))
}

// opening returns the conditions of a consumer that is not consuming.
func (c *Consumer) opening(open bool, err error) []statusz.Condition {
	database := statusz.Condition{Type: databaseReachable, Status: unknown, Reason: reasonStarting}
	schema := statusz.Condition{Type: schemaReady, Status: unknown, Reason: reasonStarting}
	if open || err == nil {
		return []statusz.Condition{database, schema}
	}
	var inUse *verdict.NameInUseError
	var statement *verdict.StatementError
	var privilege *verdict.PrivilegeError
	var t *verdict.Trouble
	reachable := statusz.Condition{Type: databaseReachable, Status: yes, Reason: reasonReachable}
	switch {
	case errors.As(err, &inUse):
		current := statusz.Condition{Type: schemaReady, Status: yes, Reason: reasonCurrent}
		name := statusz.Condition{Type: consumerNameInUse, Status: yes, Reason: reasonInUse, Message: err.Error()}
		return []statusz.Condition{reachable, current, name}
	case errors.As(err, &statement):
		schema.Status, schema.Reason, schema.Message = no, reasonStatement, c.describe(err)
		return []statusz.Condition{reachable, schema}
	case errors.As(err, &privilege):
		database.Status, database.Reason, database.Message = no, reasonPrivileged, err.Error()
		return []statusz.Condition{database, schema}
	case errors.As(err, &t):
		cs := []statusz.Condition{database, schema}
		blame(cs, t)
		return cs
	default:
		return []statusz.Condition{database, schema}
	}
}

// describe adds to an error where in the resource it is.
func (c *Consumer) describe(err error) string {
	var statement *verdict.StatementError
	if !errors.As(err, &statement) || statement.Position == 0 {
		return err.Error()
	}
	at := c.handler.Position(statement.Route, statement.Position)
	return fmt.Sprintf("%s, at character %d of handler.sql.routes[%d].statement", err, at, statement.Route)
}

// blame writes a trouble into the condition that it belongs to: tables that are not right, or the database.
func blame(cs []statusz.Condition, t *verdict.Trouble) {
	kind := databaseReachable
	switch t.Reason {
	case "SchemaMissing", "SchemaInvalid", "PermissionDenied":
		kind = schemaReady
	}
	for i := range cs {
		if cs[i].Type == kind {
			cs[i] = statusz.Condition{Type: kind, Status: no, Reason: t.Reason, Message: t.Text}
		}
		if kind == schemaReady && cs[i].Type == databaseReachable && cs[i].Status == unknown {
			cs[i].Status, cs[i].Reason = yes, reasonReachable // it was the database that said so
		}
	}
}

func sourceCondition(ok bool, err error) statusz.Condition {
	var known *broker.Error
	switch {
	case errors.As(err, &known):
		return statusz.Condition{Type: sourceReachable, Status: no, Reason: string(known.Reason), Message: known.Detail}
	case err != nil:
		return statusz.Condition{
			Type:    sourceReachable,
			Status:  no,
			Reason:  string(broker.ReasonBrokerError),
			Message: "the broker delivers nothing",
		}
	case ok:
		return statusz.Condition{Type: sourceReachable, Status: yes, Reason: reasonReachable}
	default:
		return statusz.Condition{Type: sourceReachable, Status: unknown, Reason: reasonNotReported}
	}
}
