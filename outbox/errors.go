package outbox

import (
	"errors"
	"fmt"
)

// What can be wrong with a write, for errors.Is. A *FieldError says which message and field.
var (
	// ErrInvalid: a field is missing or malformed.
	ErrInvalid = errors.New("not valid")
	// ErrTooLarge: a payload, the headers or the number of messages is beyond its bound.
	ErrTooLarge = errors.New("too large")
	// ErrNUL: a text holds a NUL, which PostgreSQL does not store.
	ErrNUL = errors.New("holds NUL")
	// ErrIDInUse: a message with this id was written before.
	ErrIDInUse = errors.New("id in use")
	// ErrVersion: a version of the caller's own is not above the last one of its key.
	ErrVersion = errors.New("version not above the last")
	// ErrNoTransaction: what was given is no transaction, so that message and business change could part.
	ErrNoTransaction = errors.New("outbox: not in a transaction")
	// ErrFlushed: the collector was flushed before; a second flush could deadlock with other transactions.
	ErrFlushed = errors.New("outbox: collector is already flushed")
)

// FieldError says what is wrong with a message. It names fields as the table does and quotes no value.
type FieldError struct {
	// Index is the message's place among the arguments, from 0; -1 where it is not known.
	Index int
	// Field is the column's name, such as "ordering_key".
	Field string
	// Problem completes the sentence that begins with the field.
	Problem string

	kind  error
	cause error
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("outbox: %s %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("outbox: message %d: %s %s", e.Index, e.Field, e.Problem)
}

// Unwrap returns the kind, one of the variables above, and the database's error where there is one.
func (e *FieldError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// problem is what is wrong with one value.
type problem struct {
	kind error
	text string
}

func invalid(text string) *problem  { return &problem{kind: ErrInvalid, text: text} }
func tooLarge(text string) *problem { return &problem{kind: ErrTooLarge, text: text} }

// sqlState is implemented by the errors of pgx and of other drivers.
type sqlState interface {
	error
	SQLState() string
}

// writeError makes the database's answers that mean something here recognisable.
func writeError(err error) error {
	var state sqlState
	if errors.As(err, &state) && state.SQLState() == "23505" {
		return &FieldError{Index: -1, Field: "event_id", Problem: "is in use", kind: ErrIDInUse, cause: err}
	}
	return fmt.Errorf("write to the outbox: %w", err)
}
