package deadletter

// Class is how a failure of a handler's statement counts (contract R5).
type Class uint8

// The classes. The zero value is Environment, which counts against nothing.
const (
	// Environment: the database is not as it must be. The whole batch waits; no attempt counts.
	Environment Class = iota
	// Retry: the transaction was rolled back by no fault of its own and runs again at once.
	Retry
	// Ambiguous: this message's statement failed, and the error cannot tell whether the message or its surroundings
	// are the cause. The message is parked and its key waits; no attempt counts.
	Ambiguous
	// Message: the statement refuses this message. It is parked, its key waits and an attempt counts.
	Message
)

// String returns the class as logs name it.
func (c Class) String() string {
	switch c {
	case Retry:
		return "retry"
	case Ambiguous:
		return "ambiguous"
	case Message:
		return "message"
	default:
		return "environment"
	}
}

// ClassifyStatement says how the SQLSTATE of a handler's failed statement counts. An empty state means that the server
// gave no answer.
//
// A missing table, right or function is ambiguous and not environment: a handler may call a function that meets it for
// one message only, and one message must not stop the others (G8).
func ClassifyStatement(state string) Class {
	switch state {
	case "57014", // statement_timeout: too slow for this message, or for all
		"55P03": // lock_timeout: somebody holds a row of the handler's
		return Ambiguous
	case "40001", "40P01":
		return Retry
	}
	if len(state) < 2 {
		return Environment
	}
	switch state[:2] {
	case "08", "25", "26", "28", "53", "55", "57", "58", "F0", "XX":
		return Environment
	case "40":
		return Retry
	case "0A", "3D", "3F", "42":
		return Ambiguous
	default: // 21, 22, 23, 54, P0 and what functions raise
		return Message
	}
}
