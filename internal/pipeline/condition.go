package pipeline

import (
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/statusz"
)

// Condition types, as api/v1alpha1 describes them. The planes share words, not code.
const (
	databaseReachable     = "DatabaseReachable"
	schemaReady           = "SchemaReady"
	brokerReachable       = "BrokerReachable"
	sourceReachable       = "SourceReachable"
	insecureTransport     = "InsecureTransport"
	tableInUse            = "TableInUse"
	consumerNameInUse     = "ConsumerNameInUse"
	targetMayDiscard      = "TargetMayDiscard"
	partitionCountChanged = "PartitionCountChanged"
	nonDurableDatabase    = "NonDurableDatabase"
	vacuumBlocked         = "VacuumBlocked"
	certificateExpiring   = "CertificateExpiring"
	notifyUnavailable     = "NotifyUnavailable"
	referencesResolved    = "ReferencesResolved"
	statusTrue            = "True"
	statusFalse           = "False"
	statusUnknown         = "Unknown"
	reasonReachable       = "Reachable"
	reasonSchemaCurrent   = "SchemaCurrent"
	reasonStarting        = "Starting"
	reasonInUse           = "InUse"
	reasonSecretMissing   = "SecretNotFound"

	reasonOverPrivileged = "OverPrivilegedRole"
	reasonSchemaOutdated = "SchemaOutdated"
	reasonSchemaTooNew   = "SchemaTooNew"
)

// maxMessageBytes bounds a condition's message.
const maxMessageBytes = 256

// condition makes one, its message cut to what a status may hold.
func condition(kind, status, reason, message string) statusz.Condition {
	if len(message) > maxMessageBytes {
		message = strings.ToValidUTF8(message[:maxMessageBytes-3], "") + "..."
	}
	return statusz.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// setCondition puts a condition in, in place of one of its type.
func setCondition(r *statusz.Report, c statusz.Condition) {
	i := slices.IndexFunc(r.Conditions, func(have statusz.Condition) bool { return have.Type == c.Type })
	if i < 0 {
		r.Conditions = append(r.Conditions, c)
		return
	}
	r.Conditions[i] = c
}

// adopt takes a condition of a part over, in the words of the API.
func adopt(r *statusz.Report, c statusz.Condition) {
	switch {
	case c.Status == statusUnknown:
		c.Reason = reasonStarting
	case c.Status == statusTrue && c.Type == schemaReady:
		c.Reason = reasonSchemaCurrent
	case c.Status == statusTrue && (c.Type == tableInUse || c.Type == consumerNameInUse):
		c.Reason = reasonInUse
	case c.Status == statusTrue && (c.Type == databaseReachable || c.Type == brokerReachable || c.Type == sourceReachable):
		c.Reason = reasonReachable
	case c.Type == databaseReachable:
		c.Reason = databaseReason(postgres.Reason(c.Reason))
	case c.Reason == string(broker.ReasonNoCredentials):
		c.Reason = reasonSecretMissing
	}
	setCondition(r, condition(c.Type, c.Status, c.Reason, c.Message))
}

// trouble is why no part runs: what is known of the conditions, and the cause.
type trouble struct {
	conditions []statusz.Condition
	err        error
}

// Error implements error. The cause's text is safe: it was made to be shown.
func (t *trouble) Error() string { return t.err.Error() }

// Unwrap returns the cause.
func (t *trouble) Unwrap() error { return t.err }

// apply writes what is known into a report.
func (t *trouble) apply(r *statusz.Report) {
	for _, c := range t.conditions {
		setCondition(r, c)
	}
}
