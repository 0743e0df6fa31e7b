package inboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/verdict"
)

// suspicious says whether an error that is about no message, as far as its code tells, came from a handler's statement
// all the same: a trigger that raises serialization_failure for one order, a broken page of an index under one key. Run
// again and again with all the others, such a message would stop them for ever.
func suspicious(err error) bool {
	var handler *handlerError
	var commit *commitError
	if !errors.As(err, &handler) && !errors.As(err, &commit) {
		return false
	}
	class, state := statementClass(err)
	return state != "" && (class == deadletter.Retry || class == deadletter.Environment)
}

// ambiguous is how the failure of such a message is written down: it waits, and no attempt is counted.
func ambiguous(job verdict.Job, err error, attempts int, failing time.Duration) *verdict.Failure {
	f := failure(job, err, attempts, failing)
	f.Class = deadletter.Ambiguous
	return f
}

// apart runs each message in a transaction of its own. One that fails for no fault of its own, while another's statement
// was committed, waits by itself: what fails comes with that message. When none gets through, it is the environment.
func (s *Store) apart(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error) {
	decisions := make([]verdict.Decision, len(items))
	held := make(map[verdict.Hash]bool)
	suspects := make(map[int]error)
	var last error
	worked := false
	end := s.now().Add(job.HandlerTimeout)
	for i, it := range items {
		if s.now().After(end) {
			break // what is left comes in the lane's next batch
		}
		if it.Keyed && held[it.Key] {
			continue
		}
		got, _, err := s.singly(ctx, job, items[i:i+1])
		switch {
		case err == nil:
			decisions[i] = got[0]
			worked = worked || (got[0].Action == verdict.Apply)
		case suspicious(err):
			suspects[i], last = err, err
		default:
			return decisions, trouble(err, 1)
		}
		if it.Keyed && decisions[i].Action == verdict.Undecided {
			held[it.Key] = true
		}
	}
	if !worked && last != nil {
		return decisions, trouble(last, 1)
	}
	for i, cause := range suspects {
		got, _, err := s.savepoints(ctx, job, items[i:i+1], ambiguous(job, cause, 1, 0))
		if err != nil {
			return decisions, trouble(err, 1)
		}
		decisions[i] = got[0]
	}
	return decisions, nil
}
