package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	reasonTriggerMissing = "TriggerMissing"
	reasonNotDelivered   = "NotDelivered"
	reasonListenFailed   = "ListenFailed"

	// quietFailures is how many failures in a row are nobody's news: while a database is away, that is told elsewhere.
	quietFailures = 3
)

// listenPause lies between tries to listen. Meanwhile the relay polls.
var listenPause = retry.Backoff{Initial: time.Second, Max: time.Minute}

// listening has the database tell of commits (batch.wakeUp: Notify). Nothing depends on it but how soon a message goes.
type listening struct {
	// check looks for the trigger; listen is postgres.Pool's.
	check  func(context.Context) error
	listen func(ctx context.Context, heard, told func()) error
	// remedy adds the trigger.
	remedy string
	random func() float64

	mu      sync.Mutex
	problem *statusz.Condition
}

// newListening listens to an outbox, which theirs says is a table that the team has.
func newListening(pool *postgres.Pool, names postgres.Names, theirs bool, random func() float64) *listening {
	remedy := "run `postrider schema apply outbox --notify`"
	if theirs {
		remedy = "run what `postrider schema print outbox --notify` prints for your table"
	}
	return &listening{
		remedy: remedy,
		random: random,
		check: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
			defer cancel()
			return schema.VerifyNotify(ctx, pool, names)
		},
		listen: func(ctx context.Context, heard, told func()) error {
			return pool.Listen(ctx, names.Outbox, names.Schema, heard, told)
		},
	}
}

// follow calls told at each commit until ctx ends, as far as the database tells of any.
func (l *listening) follow(ctx context.Context, log *slog.Logger, told func()) {
	failures := 0
	for ctx.Err() == nil {
		err := l.check(ctx)
		if err == nil {
			err = l.listen(ctx, func() {
				failures = 0
				l.note(ctx, log, l.check(ctx), failures)
				told() // of what was committed while nobody listened
			}, told)
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		l.note(ctx, log, err, failures)
		select {
		case <-ctx.Done():
		case <-time.After(listenPause.Pause(failures, l.random())):
		}
	}
}

// note keeps what is wrong, and logs it where that is news.
func (l *listening) note(ctx context.Context, log *slog.Logger, err error, failures int) {
	now := l.problemOf(err)
	if now != nil && now.Reason == reasonListenFailed && failures <= quietFailures {
		return
	}
	l.mu.Lock()
	before := l.problem
	l.problem = now
	l.mu.Unlock()
	if now != nil && (before == nil || before.Reason != now.Reason) {
		log.WarnContext(ctx, "The database does not tell of commits", "reason", now.Reason, "detail", now.Message)
	}
}

// problemOf says why no commit is told of; nil where each is.
func (l *listening) problemOf(err error) *statusz.Condition {
	const meanwhile = "; meanwhile the relay looks once a poll interval"
	var c statusz.Condition
	missing, isMissing := errors.AsType[*schema.Error](err)
	switch {
	case err == nil:
		return nil
	case isMissing:
		c = condition(notifyUnavailable, statusTrue, reasonTriggerMissing,
			missing.Message+": "+l.remedy+meanwhile)
	case errors.Is(err, postgres.ErrNotTold):
		c = condition(
			notifyUnavailable,
			statusTrue,
			reasonNotDelivered,
			"notifications do not come through, as behind a pooler in transaction mode: connect to the server itself, or set "+
				"batch.wakeUp to Poll"+meanwhile,
		)
	default:
		c = condition(notifyUnavailable, statusTrue, reasonListenFailed, postgres.SafeError(err)+meanwhile)
	}
	return &c
}

// conditions are the warnings that hold.
func (l *listening) conditions() []statusz.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problem == nil {
		return nil
	}
	return []statusz.Condition{*l.problem}
}
