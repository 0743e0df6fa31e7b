package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	// checkPeriod is how often the broker is looked at while all is well, checkAgain while it is not.
	checkPeriod = 15 * time.Second
	checkAgain  = time.Second
)

// lookout looks at the broker from time to time: whether it can be used, and what about it may hurt later.
type lookout struct {
	mu     sync.Mutex
	looked bool
	err    error
	seen   []broker.Warning
}

// follow looks until ctx ends, and logs each kind of warning once.
func (l *lookout) follow(
	ctx context.Context, log *slog.Logger, check func(context.Context) ([]broker.Warning, error),
) {
	told := make(map[broker.WarningReason]bool)
	everySoOften(ctx, func() time.Duration {
		found, err := check(ctx)
		if ctx.Err() != nil {
			return checkAgain
		}
		l.note(found, err)
		for _, w := range found {
			if !told[w.Reason] {
				told[w.Reason] = true
				log.WarnContext(ctx, "The broker may hurt later", "reason", w.Reason, "detail", w.Detail)
			}
		}
		if err != nil {
			return checkAgain
		}
		return checkPeriod
	})
}

// everySoOften looks until ctx ends, each time after the pause that the look before asked for.
func everySoOften(ctx context.Context, look func() time.Duration) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(look()):
		}
	}
}

func (l *lookout) note(found []broker.Warning, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked, l.err = true, err
	if err == nil || found != nil {
		l.seen = found
	}
}

func (l *lookout) warnings() []broker.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// condition is what the last look says, or the other one before the first.
func (l *lookout) condition(name string, otherwise statusz.Condition) statusz.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.looked {
		return otherwise
	}
	return brokerCondition(name, l.err)
}
