package outboxdb

import (
	"errors"

	"github.com/postrider/postrider/internal/postgres"
)

// The condition types that an error of the store belongs to.
const (
	conditionDatabase = "DatabaseReachable"
	conditionSchema   = "SchemaReady"
	conditionInUse    = "TableInUse"
	conditionUnburied = "DeadLetterUnavailable"
)

// Explain says which condition an error belongs to, its reason, and what to do about it, in words that are safe
// to show.
func (s *Store) Explain(err error) (condition, reason, message string) {
	if inUse, ok := errors.AsType[*TableInUseError](err); ok {
		return conditionInUse, "OwnedByOther", inUse.Error()
	}
	_, why, _ := postgres.Classify(err)
	if _, ok := errors.AsType[*UnburiedError](err); ok && unburied(err) {
		return conditionUnburied, string(why), "a dead letter cannot be written, so its shard stands still: " +
			postgres.SafeError(err)
	}
	switch why {
	case postgres.ReasonSchemaMissing, postgres.ReasonSchemaInvalid, postgres.ReasonPermissionDenied:
		condition = conditionSchema
	default:
		condition = conditionDatabase
	}
	return condition, string(why), postgres.SafeError(err)
}
