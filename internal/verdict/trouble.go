package verdict

import "fmt"

// Kind is what a failed call to the inbox tables means for the lane that made it.
type Kind uint8

// The kinds. The zero value is Environment: wait and try again.
const (
	// Environment: the database is not as it must be.
	Environment Kind = iota
	// Again: the transaction was rolled back by no fault of its own.
	Again
	// Slow: the batch took longer than a transaction may; a smaller one may fit.
	Slow
	// DeadLetterUnavailable: a dead letter cannot be written, so nothing of the batch was.
	DeadLetterUnavailable
	// OutcomeUnknown: the commit was sent and not answered. The inbox tells at the next try.
	OutcomeUnknown
	// Stopping: the caller ended the call.
	Stopping
)

// String returns the kind as logs name it.
func (k Kind) String() string {
	switch k {
	case Again:
		return "again"
	case Slow:
		return "slow"
	case DeadLetterUnavailable:
		return "dead letter unavailable"
	case OutcomeUnknown:
		return "outcome unknown"
	case Stopping:
		return "stopping"
	default:
		return "environment"
	}
}

// Trouble is why a call to the inbox tables did nothing, or did not do all.
type Trouble struct {
	Kind Kind
	// Reason is the reason of a condition, such as "Unreachable".
	Reason string
	// Code is the SQLSTATE, empty where the server did not answer.
	Code string
	// Text may be shown: it is our own words, with names and never with values.
	Text string
	Err  error
}

// Error implements error with what may be shown.
func (t *Trouble) Error() string { return t.Text }

// Unwrap returns the cause.
func (t *Trouble) Unwrap() error { return t.Err }

// NameInUseError says that another resource uses the consumer name.
type NameInUseError struct {
	ConsumerName string
	// Owner is the other resource, as namespace/name.
	Owner string
}

// Error implements error.
func (e *NameInUseError) Error() string {
	return fmt.Sprintf(
		"consumer name %s is used by InboxConsumer %s: give one of them another",
		e.ConsumerName,
		e.Owner,
	)
}

// StatementError says that the database does not accept a handler's statement.
type StatementError struct {
	// Route is the statement's place in the resource, from 0.
	Route int
	// Code is the SQLSTATE.
	Code string
	// Missing is what the server says is not there: a table, column, function, type or schema that the statement names;
	// empty where it says something else.
	Missing string
	// Position counts the characters of the statement as it was sent, from 1; 0 where none is known.
	Position int
}

// Error implements error.
func (e *StatementError) Error() string {
	missing := ""
	if e.Missing != "" {
		missing = ": " + e.Missing
	}
	return fmt.Sprintf(
		"the database does not accept the statement of route %d%s (SQLSTATE %s)",
		e.Route,
		missing,
		e.Code,
	)
}

// PrivilegeError says that the handler's role may do more than a handler should.
type PrivilegeError struct {
	// Right is the attribute or the role that is too much.
	Right string
}

// Error implements error.
func (e *PrivilegeError) Error() string {
	return fmt.Sprintf("the database role has %s: a handler's statements run with its rights; "+
		"use an ordinary role (see `postrider schema print --roles`)", e.Right)
}
