package postgres

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

const canary = "canary-secret-4711"

func pgError(code string) error {
	return fmt.Errorf("settle: %w", &pgconn.PgError{
		Code:          code,
		Message:       "text in any language " + canary,
		Detail:        canary,
		Hint:          canary,
		Where:         canary,
		InternalQuery: canary,
	})
}

func TestClassify(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		err    error
		class  Class
		reason Reason
		state  string
	}{
		"nothing is no error":                 {nil, ClassNone, "", ""},
		"a wrong password is the environment": {pgError("28P01"), ClassEnvironment, ReasonAuthFailed, "28P01"},
		"a refused user is the environment":   {pgError("28000"), ClassEnvironment, ReasonAuthFailed, "28000"},
		"a missing database is named": {
			pgError("3D000"),
			ClassEnvironment,
			ReasonDatabaseMissing,
			"3D000",
		},
		"a missing schema is named": {
			pgError("3F000"),
			ClassEnvironment,
			ReasonSchemaMissing,
			"3F000",
		},
		"a missing table is named": {
			pgError("42P01"),
			ClassEnvironment,
			ReasonSchemaMissing,
			"42P01",
		},
		"a missing function is named": {
			pgError("42883"),
			ClassEnvironment,
			ReasonSchemaMissing,
			"42883",
		},
		"a missing column makes the schema invalid": {
			pgError("42703"),
			ClassEnvironment,
			ReasonSchemaInvalid,
			"42703",
		},
		"a missing right is the environment": {
			pgError("42501"),
			ClassEnvironment,
			ReasonPermissionDenied,
			"42501",
		},
		"a full disk is the environment": {pgError("53100"), ClassEnvironment, ReasonDiskFull, "53100"},
		"too many connections are the environment": {
			pgError("53300"),
			ClassEnvironment,
			ReasonTooManyConnections,
			"53300",
		},
		"out of memory is the environment": {
			pgError("53200"),
			ClassEnvironment,
			ReasonOutOfResources,
			"53200",
		},
		"a read-only server is the environment": {pgError("25006"), ClassEnvironment, ReasonReadOnly, "25006"},
		"a statement timeout is the environment": {
			pgError("57014"),
			ClassEnvironment,
			ReasonStatementTimeout,
			"57014",
		},
		"a lock timeout is the environment": {pgError("55P03"), ClassEnvironment, ReasonLockTimeout, "55P03"},
		"a session ended for idling is reported so": {
			pgError("25P03"),
			ClassEnvironment,
			ReasonTransactionTimeout,
			"25P03",
		},
		"a stopping server is the environment": {
			pgError("57P01"),
			ClassEnvironment,
			ReasonServerStopping,
			"57P01",
		},
		"a starting server is the environment": {
			pgError("57P03"),
			ClassEnvironment,
			ReasonServerStopping,
			"57P03",
		},
		"an internal error is the environment":       {pgError("XX000"), ClassEnvironment, ReasonServerError, "XX000"},
		"a corrupt page is the environment":          {pgError("XX001"), ClassEnvironment, ReasonServerError, "XX001"},
		"a pooler's connection error is unreachable": {pgError("08P01"), ClassEnvironment, ReasonUnreachable, "08P01"},
		"an empty state is the environment":          {pgError(""), ClassEnvironment, ReasonServerError, ""},
		"a serialization failure runs again":         {pgError("40001"), ClassRetry, ReasonSerialization, "40001"},
		"a deadlock runs again":                      {pgError("40P01"), ClassRetry, ReasonDeadlock, "40P01"},
		"a stale cached plan runs again": {
			&pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}, ClassRetry, ReasonCachedPlan, "0A000",
		},
		"another unsupported feature is the statement's": {
			pgError("0A000"),
			ClassStatement,
			ReasonStatementInvalid,
			"0A000",
		},
		"an unknown completion is unknown":      {pgError("40003"), ClassUnknown, ReasonNoAnswer, "40003"},
		"a unique violation is the statement's": {pgError("23505"), ClassStatement, ReasonConstraint, "23505"},
		"bad data is the statement's": {
			pgError("22023"),
			ClassStatement,
			ReasonInvalidData,
			"22023",
		},
		"a program limit is the statement's": {pgError("54000"), ClassStatement, ReasonTooLarge, "54000"},
		"a syntax error is the statement's": {
			pgError("42601"),
			ClassStatement,
			ReasonStatementInvalid,
			"42601",
		},
		"a raised exception is the statement's": {pgError("P0001"), ClassStatement, ReasonOther, "P0001"},
		"a closed pool is a shutdown":           {puddle.ErrClosedPool, ClassShutdown, ReasonCancelled, ""},
		"a cancelled context is a shutdown": {
			fmt.Errorf("read: %w", context.Canceled),
			ClassShutdown,
			ReasonCancelled,
			"",
		},
		"a passed deadline leaves the outcome unknown": {context.DeadlineExceeded, ClassUnknown, ReasonNoAnswer, ""},
		"a cut connection leaves the outcome unknown":  {io.ErrUnexpectedEOF, ClassUnknown, ReasonConnectionLost, ""},
		"a reset connection leaves the outcome unknown": {
			&net.OpError{Op: "read", Err: syscall.ECONNRESET}, ClassUnknown, ReasonConnectionLost, "",
		},
		"a rolled back commit runs again": {pgx.ErrTxCommitRollback, ClassRetry, ReasonOther, ""},
		"no row is the statement's":       {pgx.ErrNoRows, ClassStatement, ReasonOther, ""},
		"an error of our own keeps its reason": {
			&Error{Reason: ReasonAddressRefused, Message: "m"}, ClassEnvironment, ReasonAddressRefused, "",
		},
		"any other error leaves the outcome unknown": {errors.New("?"), ClassUnknown, ReasonOther, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			class, reason, state := Classify(tc.err)
			if class != tc.class || reason != tc.reason || state != tc.state {
				t.Errorf(
					"Classify() = %s, %s, %s, want %s, %s, %s",
					class,
					reason,
					state,
					tc.class,
					tc.reason,
					tc.state,
				)
			}
			checkSafe(t, tc.err)
		})
	}
}

func checkSafe(t *testing.T, err error) {
	t.Helper()
	text := SafeError(err)
	if strings.Contains(text, canary) {
		t.Errorf("SafeError() = %q holds the server's words", text)
	}
	if len(text) > maxSafeBytes {
		t.Errorf("SafeError() has %d bytes, want at most %d", len(text), maxSafeBytes)
	}
	if err != nil && text == "" {
		t.Error("SafeError() is empty for an error")
	}
}

func TestConnectReason(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		err  error
		tls  bool
		want Reason
	}{
		"a refused connection is unreachable": {
			&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
			true,
			ReasonUnreachable,
		},
		"an unknown host is unreachable": {
			&net.DNSError{Name: "nowhere", IsNotFound: true},
			false,
			ReasonUnreachable,
		},
		"a connect timeout is unreachable":      {context.DeadlineExceeded, false, ReasonUnreachable},
		"only standbys found is read-only":      {pgconn.ErrReadOnlyConnection, false, ReasonReadOnly},
		"an unknown authority is a TLS failure": {x509.UnknownAuthorityError{}, true, ReasonTLSFailed},
		"another host's certificate is TLS": {
			x509.HostnameError{Certificate: &x509.Certificate{}},
			true,
			ReasonTLSFailed,
		},
		"an alert is a TLS failure": {
			&net.OpError{Op: "remote error", Err: errors.New("?")},
			true,
			ReasonTLSFailed,
		},
		"a server without TLS is a TLS failure":     {errors.New("refused"), true, ReasonTLSFailed},
		"a connection cut at once is unreachable":   {io.EOF, true, ReasonUnreachable},
		"any other failure in plain is unreachable": {errors.New("?"), false, ReasonUnreachable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := connectReason(fmt.Errorf("dial: %w", tc.err), tc.tls); got != tc.want {
				t.Errorf("connectReason() = %s, want %s", got, tc.want)
			}
		})
	}
}

func FuzzSafeError(f *testing.F) {
	f.Add("23505", "orders_pkey", "orders", "id")
	f.Add("", strings.Repeat("é", 300), "\x00\x1b[31m", "\xff")
	f.Fuzz(func(t *testing.T, code, constraint, table, column string) {
		text := SafeError(
			&pgconn.PgError{Code: clip(code, 5), ConstraintName: constraint, TableName: table, ColumnName: column},
		)
		if len(text) > maxSafeBytes {
			t.Errorf("SafeError() has %d bytes", len(text))
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			t.Errorf("SafeError() = %q holds control characters", text)
		}
	})
}
