package v1alpha1

// OutboxLayout says whose table the outbox is.
// +kubebuilder:validation:Enum=Queue;StatusColumns
type OutboxLayout string

// The layouts.
const (
	// LayoutQueue is Postrider's own table: it holds what is pending, and publishing moves it to the archive.
	LayoutQueue OutboxLayout = "Queue"
	// LayoutStatusColumns is a table that the team already has; rows are settled in place.
	LayoutStatusColumns OutboxLayout = "StatusColumns"
)

// ColumnPreset names the columns of a well-known outbox table.
// +kubebuilder:validation:Enum=Postrider;DebeziumOutbox;OpenOutbox
type ColumnPreset string

// The presets.
const (
	// PresetPostrider is the classic table with a status column and a version of each aggregate.
	PresetPostrider ColumnPreset = "Postrider"
	// PresetDebeziumOutbox is the table of Debezium's outbox event router; a published row is deleted.
	PresetDebeziumOutbox ColumnPreset = "DebeziumOutbox"
	// PresetOpenOutbox is the table of the Open Outbox relay.
	PresetOpenOutbox ColumnPreset = "OpenOutbox"
)

// OptionalColumn is the name of a column, or empty for one that the table does not have. It is quoted wherever it is
// used, so its case counts.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z_][A-Za-z0-9_]*)?$')",message="must be one identifier: letters, digits and _, not beginning with a digit; or empty where the table has no such column"
type OptionalColumn string

// StatusValue is a value of a status column: printable ASCII of at most 63 bytes.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[ -~]+$')",message="must be printable ASCII"
type StatusValue string

// OutboxColumns name the columns of a table that the team already has. What is not set is as the preset says; what is
// set to the empty text is a column that the table does not have. A change is taken over live; the index that the
// table needs may be another one then, which SchemaReady says.
type OutboxColumns struct {
	// id is the event's id: a uuid that is unique and never NULL. Needed without a preset.
	// +optional
	ID *Identifier `json:"id,omitempty"`

	// orderingKey is what keeps its order: text, a uuid or an integer. A row without one is ordered with no other.
	// +optional
	OrderingKey *OptionalColumn `json:"orderingKey,omitempty"`

	// version numbers the messages of a key upwards from 1: an integer. A message is sent only when no lower version
	// of its key is pending. Needed with ordering.mode PerKey.
	// +optional
	Version *OptionalColumn `json:"version,omitempty"`

	// eventType is the event type that consumers choose their handler by. Without it the row's destination stands for
	// it, and without that the table's name.
	// +optional
	EventType *OptionalColumn `json:"eventType,omitempty"`

	// destination is where the row goes; destination.allowed must allow it. Without it everything goes to the default
	// destination.
	// +optional
	Destination *OptionalColumn `json:"destination,omitempty"`

	// payload is the message's data: bytea, text, json or jsonb. NULL is sent as no data. Needed without a preset.
	// +optional
	Payload *Identifier `json:"payload,omitempty"`

	// headers is a JSON object of further headers. Their names travel in lower case, with - for _.
	// +optional
	Headers *OptionalColumn `json:"headers,omitempty"`

	// contentType is the payload's media type. Without it bytea is application/octet-stream, the others
	// application/json.
	// +optional
	ContentType *OptionalColumn `json:"contentType,omitempty"`

	// traceparent is the W3C Trace Context of the writer.
	// +optional
	Traceparent *OptionalColumn `json:"traceparent,omitempty"`

	// occurredAt is when the event happened, mostly the row's creation. It tells how old a row is, and orders nothing.
	// +optional
	OccurredAt *OptionalColumn `json:"occurredAt,omitempty"`

	// status says what became of the row: text or an enumeration. Without it a row is pending for as long as it is
	// there, and a published row is deleted.
	// +optional
	Status *OptionalColumn `json:"status,omitempty"`

	// availableAt is a time before which a row is not sent; with ordering.mode PerKey its key waits with it.
	// +optional
	AvailableAt *OptionalColumn `json:"availableAt,omitempty"`

	// attempts is an integer that shows how often a row was refused. The relay keeps its own count.
	// +optional
	Attempts *OptionalColumn `json:"attempts,omitempty"`

	// publishedAt shows when a row was settled.
	// +optional
	PublishedAt *OptionalColumn `json:"publishedAt,omitempty"`

	// lastError shows the reason code of the last refusal.
	// +optional
	LastError *OptionalColumn `json:"lastError,omitempty"`

	// values are the words of the status column. They take the place of all those of the preset.
	// +optional
	Values *StatusValues `json:"values,omitempty"`
}

// StatusValues are the words of a status column.
// +kubebuilder:validation:XValidation:rule="self.pending != self.published && (!has(self.waiting) || !(self.waiting in [self.pending, self.published])) && (!has(self.failed) || (!(self.failed in [self.pending, self.published]) && (!has(self.waiting) || self.failed != self.waiting)))",message="values must differ from each other"
type StatusValues struct {
	// pending is what writers insert.
	// +required
	Pending StatusValue `json:"pending,omitempty"`

	// published is a row that the broker holds.
	// +required
	Published StatusValue `json:"published,omitempty"`

	// waiting marks a row that was refused and is tried again. Without it such a row stays pending, and each look for
	// work passes over it.
	// +optional
	Waiting StatusValue `json:"waiting,omitempty"`

	// failed marks a dead letter: a row that spent its retry budget and waits for a person. Without it there are none:
	// such a row is tried on, and its key waits.
	// +optional
	Failed StatusValue `json:"failed,omitempty"`
}
