package config

// The presets.
const (
	// PresetPostrider is the classic outbox table with a status column and a version of each aggregate.
	PresetPostrider = "Postrider"
	// PresetDebeziumOutbox is the table of Debezium's outbox event router. A published row is deleted.
	PresetDebeziumOutbox = "DebeziumOutbox"
	// PresetOpenOutbox is the table of the Open Outbox specification.
	PresetOpenOutbox = "OpenOutbox"
)

// Preset returns the columns of a well-known table; false for another name.
func Preset(name string) (Columns, bool) {
	switch name {
	case PresetPostrider:
		return Columns{
			ID: "event_id", OrderingKey: "aggregate_id", Version: "aggregate_version", Destination: "topic",
			Payload: "payload", Status: "status", Attempts: "attempts", AvailableAt: "available_at",
			PublishedAt: "published_at", LastError: "last_error", OccurredAt: "created_at",
			Values: StatusValues{Pending: "pending", Published: "published", Failed: "failed"},
		}, true
	case PresetDebeziumOutbox:
		return Columns{ID: "id", OrderingKey: "aggregateid", EventType: "type", Payload: "payload"}, true
	case PresetOpenOutbox:
		return Columns{
			ID: "event_id", OrderingKey: "partition_key", EventType: "event_type", Payload: "payload",
			Headers: "headers", Status: "status", Attempts: "attempts", AvailableAt: "available_at",
			LastError: "last_error", PublishedAt: "delivered_at", OccurredAt: "created_at",
			Values: StatusValues{Pending: "PENDING", Published: "DELIVERED", Failed: "DEAD"},
		}, true
	default:
		return Columns{}, false
	}
}

// Validate checks a mapping by itself, for a relay of that ordering.
func (m Columns) Validate(ordering string) error {
	c := &checker{}
	c.word("ordering", ordering, OrderingPerKey, OrderingNone)
	c.columns(&m, ordering)
	return c.err()
}

// columns refuses a mapping that names no table a relay could work on.
func (c *checker) columns(m *Columns, ordering string) {
	if m == nil {
		return
	}
	for _, f := range m.named() {
		if f.name != "" || f.required {
			c.text("outbox.columns."+f.field, f.name, 63, identifier, "one identifier of letters, digits and _")
		}
	}
	c.require("outbox.columns.orderingKey", ordering == OrderingNone || (m.OrderingKey != "" && m.Version != ""),
		"ordering PerKey needs columns.orderingKey and columns.version: without a version nothing tells "+
			"which message of a key comes first")
	values := []string{m.Values.Pending, m.Values.Published, m.Values.Waiting, m.Values.Failed}
	if m.Status == "" {
		c.require("outbox.columns.values", m.Values == StatusValues{}, "are those of columns.status, which is not set")
		return
	}
	c.require("outbox.columns.values", m.Values.Pending != "" && m.Values.Published != "",
		"columns.status needs values.pending and values.published")
	seen := make(map[string]bool, len(values))
	for _, v := range values {
		c.require("outbox.columns.values", len(v) <= 63, "must be at most 63 bytes each")
		c.require("outbox.columns.values", v == "" || !seen[v], "must differ from each other")
		c.require("outbox.columns.values", v == "" || printableASCII.MatchString(v), "must be printable ASCII")
		seen[v] = true
	}
}

// namedColumn is one column of a mapping with the field that names it.
type namedColumn struct {
	field, name string
	required    bool
}

// named lists the columns in the order of the fields.
func (m *Columns) named() []namedColumn {
	return []namedColumn{
		{"id", m.ID, true},
		{"orderingKey", m.OrderingKey, false},
		{"version", m.Version, false},
		{"eventType", m.EventType, false},
		{"destination", m.Destination, false},
		{"payload", m.Payload, true},
		{"headers", m.Headers, false},
		{"contentType", m.ContentType, false},
		{"traceparent", m.Traceparent, false},
		{"occurredAt", m.OccurredAt, false},
		{"status", m.Status, false},
		{"availableAt", m.AvailableAt, false},
		{"attempts", m.Attempts, false},
		{"publishedAt", m.PublishedAt, false},
		{"lastError", m.LastError, false},
	}
}
