package pipeline

import (
	"errors"
	"strings"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/statusz"
)

// databaseConditions says what an error of the database means for the two conditions that speak of it. A nil
// error means that all is well.
func databaseConditions(err error) []statusz.Condition {
	if err == nil {
		return []statusz.Condition{
			condition(databaseReachable, statusTrue, reasonReachable, ""),
			condition(schemaReady, statusTrue, reasonSchemaCurrent, ""),
		}
	}
	class, reason, _ := postgres.Classify(err)
	text := safeText(err)
	if isSchema(reason) {
		return []statusz.Condition{
			condition(databaseReachable, statusTrue, reasonReachable, ""),
			condition(schemaReady, statusFalse, string(reason), text),
		}
	}
	unknown := condition(schemaReady, statusUnknown, databaseReason(reason), "the database cannot be asked")
	if class == postgres.ClassShutdown {
		return []statusz.Condition{
			condition(databaseReachable, statusUnknown, reasonStarting, "ended before the database answered"), unknown,
		}
	}
	return []statusz.Condition{condition(databaseReachable, statusFalse, databaseReason(reason), text), unknown}
}

// safeText is what a condition says of an error beside its reason.
func safeText(err error) string {
	_, reason, _ := postgres.Classify(err)
	return strings.TrimPrefix(postgres.SafeError(err), string(reason)+": ")
}

// databaseTrouble is why no part can be built on the database, told in words that are safe to show.
func databaseTrouble(err error) *trouble {
	return &trouble{conditions: databaseConditions(err), err: errors.New(postgres.SafeError(err))}
}

// isSchema says whether a reason is about the tables and not about the way to them.
func isSchema(r postgres.Reason) bool {
	switch r {
	case postgres.ReasonSchemaMissing, postgres.ReasonSchemaInvalid, reasonSchemaOutdated, reasonSchemaTooNew,
		postgres.ReasonStatementInvalid, postgres.ReasonPermissionDenied:
		return true
	default:
		return false
	}
}

// databaseReason maps the many reasons of the database to the few that a condition has.
func databaseReason(r postgres.Reason) string {
	switch r {
	case postgres.ReasonUnreachable, postgres.ReasonAddressRefused, postgres.ReasonConnectionLost:
		return string(postgres.ReasonUnreachable)
	case postgres.ReasonTLSFailed, postgres.ReasonAuthFailed, postgres.ReasonDatabaseMissing,
		postgres.ReasonPermissionDenied, postgres.ReasonReadOnly, postgres.ReasonNoAnswer, reasonOverPrivileged:
		return string(r)
	case postgres.ReasonCredentialsInvalid:
		return reasonSecretMissing
	case postgres.ReasonDiskFull:
		return "DatabaseFull"
	default:
		return "DatabaseError"
	}
}

// brokerCondition says what an error of the broker means for the condition of that name. A nil error means
// that all is well.
func brokerCondition(name string, err error) statusz.Condition {
	if err == nil {
		return condition(name, statusTrue, reasonReachable, "")
	}
	var state *broker.Error
	if !errors.As(err, &state) {
		return condition(name, statusFalse, string(broker.ReasonBrokerError), "the broker cannot be used")
	}
	reason := string(state.Reason)
	if state.Reason == broker.ReasonNoCredentials {
		reason = reasonSecretMissing
	}
	return condition(name, statusFalse, reason, state.Detail)
}
