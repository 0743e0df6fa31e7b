package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// Class says what an error means for the caller's next step.
type Class uint8

// The classes. The zero value is for no error.
const (
	// ClassNone is the class of nil.
	ClassNone Class = iota
	// ClassEnvironment: the database, our right to it or its schema is not as it must be; nothing was done.
	// Wait, say why, try again. It counts against nobody's budget.
	ClassEnvironment
	// ClassRetry: the transaction was rolled back by no fault of its own. Run the whole transaction again.
	ClassRetry
	// ClassUnknown: the connection or the answer was lost after a statement was sent. It may have been done.
	ClassUnknown
	// ClassStatement: the server refuses this statement with these values; another one may well work.
	ClassStatement
	// ClassShutdown: the caller's context was cancelled, or the pool is closed.
	ClassShutdown
)

// String names the class as metrics and logs do.
func (c Class) String() string {
	switch c {
	case ClassNone:
		return "none"
	case ClassEnvironment:
		return "environment"
	case ClassRetry:
		return "retry"
	case ClassUnknown:
		return "unknown"
	case ClassStatement:
		return "statement"
	case ClassShutdown:
		return "shutdown"
	default:
		return "invalid"
	}
}

// Reason is what is wrong: a closed set, used in conditions, metrics and error codes.
type Reason string

// The reasons.
const (
	ReasonUnreachable        Reason = "Unreachable"
	ReasonAddressRefused     Reason = "AddressRefused"
	ReasonTLSFailed          Reason = "TLSFailed"
	ReasonAuthFailed         Reason = "AuthFailed"
	ReasonCredentialsInvalid Reason = "CredentialsInvalid"
	ReasonDatabaseMissing    Reason = "DatabaseMissing"
	ReasonSchemaMissing      Reason = "SchemaMissing"
	ReasonSchemaInvalid      Reason = "SchemaInvalid"
	ReasonPermissionDenied   Reason = "PermissionDenied"
	ReasonOverPrivileged     Reason = "OverPrivilegedRole"
	ReasonReadOnly           Reason = "ReadOnly"
	ReasonDiskFull           Reason = "DiskFull"
	ReasonTooManyConnections Reason = "TooManyConnections"
	ReasonOutOfResources     Reason = "OutOfResources"
	ReasonServerStopping     Reason = "ServerStopping"
	ReasonServerError        Reason = "ServerError"
	ReasonStatementTimeout   Reason = "StatementTimeout"
	ReasonLockTimeout        Reason = "LockTimeout"
	ReasonTransactionTimeout Reason = "TransactionTimeout"
	ReasonSerialization      Reason = "SerializationFailure"
	ReasonDeadlock           Reason = "Deadlock"
	ReasonCachedPlan         Reason = "CachedPlan"
	ReasonConnectionLost     Reason = "ConnectionLost"
	ReasonNoAnswer           Reason = "NoAnswer"
	ReasonConstraint         Reason = "ConstraintViolation"
	ReasonInvalidData        Reason = "InvalidData"
	ReasonTooLarge           Reason = "TooLarge"
	ReasonStatementInvalid   Reason = "StatementInvalid"
	ReasonCancelled          Reason = "Cancelled"
	ReasonOther              Reason = "Other"
)

// Error is a state of the environment that this program found itself, told in its own words.
type Error struct {
	Reason Reason
	// Message is safe to show: it names files, addresses and tables, never what is in them.
	Message string
	Err     error
}

// Error implements error. The cause is not part of the text: it may quote what a file holds.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Safe returns the reason and the text that may be shown.
func (e *Error) Safe() (reason Reason, message string) { return e.Reason, e.Message }

// safe is an error that knows its reason and a text that may be shown; schema.Error is one too.
type safe interface {
	error
	Safe() (Reason, string)
}

// verdict is what is known of an error by its SQLSTATE.
type verdict struct {
	class  Class
	reason Reason
}

// byState maps an SQLSTATE, or its first two characters where the longer one is not listed.
func byState(state string) verdict {
	if v, ok := exactState(state); ok {
		return v
	}
	if len(state) < 2 {
		return verdict{ClassEnvironment, ReasonServerError}
	}
	switch state[:2] {
	case "08": // the connection's own trouble, as a pooler reports it
		return verdict{ClassEnvironment, ReasonUnreachable}
	case "22":
		return verdict{ClassStatement, ReasonInvalidData}
	case "23":
		return verdict{ClassStatement, ReasonConstraint}
	case "25": // a transaction in the wrong state: the connection is of no use
		return verdict{ClassEnvironment, ReasonServerError}
	case "28":
		return verdict{ClassEnvironment, ReasonAuthFailed}
	case "40":
		return verdict{ClassRetry, ReasonSerialization}
	case "42", "0A":
		return verdict{ClassStatement, ReasonStatementInvalid}
	case "53":
		return verdict{ClassEnvironment, ReasonOutOfResources}
	case "54":
		return verdict{ClassStatement, ReasonTooLarge}
	case "57":
		return verdict{ClassEnvironment, ReasonServerStopping}
	case "55", "58", "F0", "XX":
		return verdict{ClassEnvironment, ReasonServerError}
	default: // raised by a function or trigger of the user's
		return verdict{ClassStatement, ReasonOther}
	}
}

func exactState(state string) (verdict, bool) {
	switch state {
	case "25006":
		return verdict{ClassEnvironment, ReasonReadOnly}, true
	case "25P03", "25P04", "57P05": // idle in transaction, transaction_timeout, idle session
		return verdict{ClassEnvironment, ReasonTransactionTimeout}, true
	case "3D000":
		return verdict{ClassEnvironment, ReasonDatabaseMissing}, true
	case "3F000":
		return verdict{ClassEnvironment, ReasonSchemaMissing}, true
	case "42P01", "42883": // a table or a function is missing
		return verdict{ClassEnvironment, ReasonSchemaMissing}, true
	case "42703", "42P10", "42804": // a column, an index for ON CONFLICT or a type is not as expected
		return verdict{ClassEnvironment, ReasonSchemaInvalid}, true
	case "42501":
		return verdict{ClassEnvironment, ReasonPermissionDenied}, true
	case "40001":
		return verdict{ClassRetry, ReasonSerialization}, true
	case "40P01":
		return verdict{ClassRetry, ReasonDeadlock}, true
	case "40003": // statement completion unknown
		return verdict{ClassUnknown, ReasonNoAnswer}, true
	case "53100":
		return verdict{ClassEnvironment, ReasonDiskFull}, true
	case "53300":
		return verdict{ClassEnvironment, ReasonTooManyConnections}, true
	case "55P03":
		return verdict{ClassEnvironment, ReasonLockTimeout}, true
	case "57014":
		return verdict{ClassEnvironment, ReasonStatementTimeout}, true
	default:
		return verdict{}, false
	}
}

// Classify says what an error of this package, of pgx or of the server means, by types and SQLSTATE, never by
// text. state is the SQLSTATE, empty where the server did not answer.
func Classify(err error) (class Class, reason Reason, state string) {
	if err == nil {
		return ClassNone, "", ""
	}
	if known, ok := errors.AsType[safe](err); ok {
		reason, _ := known.Safe()
		return ClassEnvironment, reason, ""
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		v := byState(server.Code)
		if planIsGone(server) {
			v = verdict{ClassRetry, ReasonCachedPlan}
		}
		return v.class, v.reason, server.Code
	}
	class, reason = classifyLocal(err)
	return class, reason, ""
}

// planIsGone says that a statement was planned in vain and will be planned anew: its table was altered, and pgx has dropped
// it, or a pooler came between, and the next session keeps none.
func planIsGone(e *pgconn.PgError) bool {
	altered := e.Code == "0A000" && e.Routine == "RevalidateCachedQuery"
	return altered || e.Code == statementMissing || e.Code == statementThere
}

// classifyLocal classifies errors that did not come from the server.
func classifyLocal(err error) (Class, Reason) {
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, puddle.ErrClosedPool):
		return ClassShutdown, ReasonCancelled
	case errors.As(err, &connect):
		return ClassEnvironment, connectReason(err, connect.Config != nil && connect.Config.TLSConfig != nil)
	case errors.Is(err, pgx.ErrNoRows), errors.Is(err, pgx.ErrTooManyRows):
		return ClassStatement, ReasonOther
	case errors.Is(err, pgx.ErrTxCommitRollback): // the transaction had failed before; COMMIT rolled it back
		return ClassRetry, ReasonOther
	case errors.Is(err, pgx.ErrTxClosed), pgconn.SafeToRetry(err):
		return ClassEnvironment, ReasonUnreachable
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return ClassUnknown, ReasonNoAnswer
	case isConnectionLoss(err):
		return ClassUnknown, ReasonConnectionLost
	default:
		return ClassUnknown, ReasonOther
	}
}

func isConnectionLoss(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed)
}

// connectReason says why a connection was not made; overTLS is whether it was to be encrypted.
func connectReason(err error, overTLS bool) Reason {
	var network net.Error
	switch {
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		return ReasonReadOnly
	case isTLS(err):
		return ReasonTLSFailed
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return ReasonUnreachable
	case overTLS:
		return ReasonTLSFailed // the network works and the server said nothing: it refused TLS
	default:
		return ReasonUnreachable
	}
}

func isTLS(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") {
		return true // so crypto/tls marks an alert, whose own type it does not export
	}
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname) ||
		errors.As(err, &invalid) || errors.As(err, &record)
}

// maxSafeBytes bounds what SafeError returns.
const maxSafeBytes = 256

// SafeError returns a text for logs, conditions and dead letters: the reason, what to do about it, and of the
// server's answer only the SQLSTATE and the names of a constraint, table or column. The server's own words are
// left out, since they and DETAIL carry values of the row, and so is everything of the connection's settings.
func SafeError(err error) string {
	if err == nil {
		return ""
	}
	_, reason, state := Classify(err)
	text := advice(reason)
	if known, ok := errors.AsType[safe](err); ok {
		_, text = known.Safe()
	}
	text = string(reason) + ": " + text + where(err)
	if state != "" {
		text += " (SQLSTATE " + state + names(err) + ")"
	}
	return clip(text, maxSafeBytes)
}

// names lists the objects that the server's answer names.
func names(err error) string {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return ""
	}
	var b strings.Builder
	for _, n := range []struct{ kind, name string }{
		{"constraint", server.ConstraintName}, {"table", server.TableName}, {"column", server.ColumnName},
	} {
		if n.name != "" {
			fmt.Fprintf(&b, ", %s %q", n.kind, clip(n.name, 63))
		}
	}
	return b.String()
}

// Missing returns the server's words for an object that a statement names and that is not there, at most 256 bytes; empty
// for every other error. Those words hold the object's name and, of a function, the types of its arguments: never a value.
func Missing(err *pgconn.PgError) string {
	switch err.Code {
	case "42P01", "42703", "42883", "42704", "3F000":
		return clip(err.Message, maxSafeBytes)
	default:
		return ""
	}
}

// where names the address or host that did not answer.
func where(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("; host %q cannot be resolved", clip(dns.Name, 63))
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && op.Addr != nil {
		return "; tried " + clip(op.Addr.String(), 63)
	}
	return ""
}

// advice says in our own words what a reason means and what to do.
func advice(r Reason) string {
	switch r {
	case ReasonUnreachable:
		return "no database server answers; check hosts, port and network"
	case ReasonTLSFailed:
		return "TLS cannot be agreed on; check tls.mode, the CA and the host name in the server's certificate"
	case ReasonAuthFailed:
		return "the server refuses the user or password; check the credentials Secret"
	case ReasonDatabaseMissing:
		return "the database does not exist; create it, or check postgres.database"
	case ReasonSchemaMissing:
		return "a schema, table or function does not exist; run `postrider schema apply`"
	case ReasonSchemaInvalid:
		return "a table is not as expected; run `postrider schema apply`"
	case ReasonPermissionDenied:
		return "the role lacks a right; see `postrider schema print --roles`"
	case ReasonReadOnly:
		return "only read-only servers were found; waiting for a writable one"
	case ReasonDiskFull:
		return "the database server's disk is full; free space on it"
	case ReasonTooManyConnections:
		return "the server has no free connection; lower maxConnections or replicas, or raise the server's limit"
	default:
		return moreAdvice(r)
	}
}

func moreAdvice(r Reason) string {
	switch r {
	case ReasonOutOfResources:
		return "the server is out of memory or another resource"
	case ReasonServerStopping:
		return "the server is stopping or starting"
	case ReasonStatementTimeout:
		return "the statement was cancelled; statement_timeout is too short or the server too slow"
	case ReasonLockTimeout:
		return "another session holds a lock for too long"
	case ReasonTransactionTimeout:
		return "the server ended the session for a timeout"
	case ReasonSerialization, ReasonDeadlock, ReasonCachedPlan:
		return "the transaction is run again"
	case ReasonConnectionLost:
		return "the connection was lost while a statement ran; its outcome is not known"
	case ReasonNoAnswer:
		return "no answer in time; the statement's outcome is not known"
	case ReasonConstraint:
		return "the row breaks a constraint"
	case ReasonInvalidData:
		return "a value is not valid"
	case ReasonTooLarge:
		return "a value is too large"
	case ReasonStatementInvalid:
		return "the server does not accept the statement"
	case ReasonCancelled:
		return "cancelled"
	case ReasonServerError:
		return "the server reports an internal error"
	default:
		return "the statement failed"
	}
}

// clip cuts a text to at most n bytes at the end of a character, and replaces control characters.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
