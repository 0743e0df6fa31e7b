package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/statusz"
)

func TestAnErrorOfTheDatabaseIsToldByTheRightCondition(t *testing.T) {
	t.Parallel()
	refusal := func(code string) error {
		return fmt.Errorf("claim: %w", &pgconn.PgError{Code: code, Message: "canary"})
	}

	cases := map[string]struct {
		err              error
		database, schema string
	}{
		"none":                           {nil, "True Reachable", "True SchemaCurrent"},
		"a missing table":                {refusal("42P01"), "True Reachable", "False SchemaMissing"},
		"a column that is not there":     {refusal("42703"), "True Reachable", "False SchemaInvalid"},
		"a wrong password":               {refusal("28P01"), "False AuthFailed", "Unknown AuthFailed"},
		"a missing database":             {refusal("3D000"), "False DatabaseMissing", "Unknown DatabaseMissing"},
		"a role without a right":         {refusal("42501"), "True Reachable", "False PermissionDenied"},
		"a full disk":                    {refusal("53100"), "False DatabaseFull", "Unknown DatabaseFull"},
		"a server that takes no more":    {refusal("53300"), "False DatabaseError", "Unknown DatabaseError"},
		"an answer that never came":      {context.DeadlineExceeded, "False NoAnswer", "Unknown NoAnswer"},
		"a call that we ended ourselves": {context.Canceled, "Unknown Starting", "Unknown DatabaseError"},
		"a missing Secret": {
			&postgres.Error{Reason: postgres.ReasonCredentialsInvalid, Message: "file /x does not exist"},
			"False SecretNotFound", "Unknown SecretNotFound",
		},
		"migrations that were not applied": {
			&postgres.Error{Reason: reasonSchemaOutdated, Message: "run `postrider schema apply`"},
			"True Reachable", "False SchemaOutdated",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(map[string]string)
			for _, c := range databaseConditions(tc.err) {
				got[c.Type] = c.Status + " " + c.Reason
				if strings.Contains(c.Message, "canary") || len(c.Message) > maxMessageBytes {
					t.Errorf("message = %q", c.Message)
				}
				if c.Status == statusFalse && c.Message == "" {
					t.Errorf("%s is False and does not say what to do", c.Type)
				}
			}
			if got[databaseReachable] != tc.database || got[schemaReady] != tc.schema {
				t.Errorf("conditions = %v, want %s and %s", got, tc.database, tc.schema)
			}
		})
	}
}

func TestAnErrorOfTheBrokerIsToldInItsOwnWords(t *testing.T) {
	t.Parallel()
	missing := &broker.Error{
		Reason: broker.ReasonStreamMissing, Detail: "run: nats stream add", Err: errors.New("canary"),
	}

	cases := map[string]struct {
		err           error
		want, message string
	}{
		"none":             {nil, "True Reachable", ""},
		"a missing stream": {fmt.Errorf("check: %w", missing), "False StreamMissing", "run: nats stream add"},
		"a missing Secret": {
			&broker.Error{Reason: broker.ReasonNoCredentials, Detail: "create it"}, "False SecretNotFound", "create it",
		},
		"one that nobody foresaw": {errors.New("canary"), "False BrokerError", "the broker cannot be used"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := brokerCondition(brokerReachable, tc.err)
			if got := c.Status + " " + c.Reason; got != tc.want || c.Message != tc.message ||
				c.Type != brokerReachable {
				t.Errorf("condition = %+v, want %s: %s", c, tc.want, tc.message)
			}
		})
	}
}

func TestAPartsConditionsAreToldInTheWordsOfTheAPI(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ from, want statusz.Condition }{
		"a database that works": {
			statusz.Condition{Type: databaseReachable, Status: statusTrue, Reason: "Working"},
			statusz.Condition{Type: databaseReachable, Status: statusTrue, Reason: "Reachable"},
		},
		"tables that are right": {
			statusz.Condition{Type: schemaReady, Status: statusTrue, Reason: "Working"},
			statusz.Condition{Type: schemaReady, Status: statusTrue, Reason: "SchemaCurrent"},
		},
		"what nobody knows yet": {
			statusz.Condition{Type: brokerReachable, Status: statusUnknown, Reason: "NotTried"},
			statusz.Condition{Type: brokerReachable, Status: statusUnknown, Reason: "Starting"},
		},
		"a table of another relay": {
			statusz.Condition{Type: tableInUse, Status: statusTrue, Reason: "OwnedByOther", Message: "stop it"},
			statusz.Condition{Type: tableInUse, Status: statusTrue, Reason: "InUse", Message: "stop it"},
		},
		"a full disk": {
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "DiskFull"},
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "DatabaseFull"},
		},
		"a password that does not work": {
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "AuthFailed"},
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "AuthFailed"},
		},
		"a role that may do too much": {
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "OverPrivilegedRole"},
			statusz.Condition{Type: databaseReachable, Status: statusFalse, Reason: "OverPrivilegedRole"},
		},
		"a Secret of the broker that is missing": {
			statusz.Condition{Type: sourceReachable, Status: statusFalse, Reason: "CredentialsMissing"},
			statusz.Condition{Type: sourceReachable, Status: statusFalse, Reason: "SecretNotFound"},
		},
		"a missing stream": {
			statusz.Condition{Type: sourceReachable, Status: statusFalse, Reason: "StreamMissing"},
			statusz.Condition{Type: sourceReachable, Status: statusFalse, Reason: "StreamMissing"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := statusz.Report{Conditions: []statusz.Condition{{Type: tc.want.Type, Status: statusUnknown}}}
			adopt(&r, tc.from)
			if len(r.Conditions) != 1 || r.Conditions[0] != tc.want {
				t.Errorf("conditions = %+v, want %+v alone", r.Conditions, tc.want)
			}
		})
	}
}
