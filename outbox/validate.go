package outbox

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	typeForm        = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,200}$`)
	contentTypeForm = regexp.MustCompile(`^[!-~]([ -~]{0,253}[!-~])?$`)
	traceparentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
	headerNameForm  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	reservedPrefix  = regexp.MustCompile(`^(nats-|ce-|x-|amq|kafka-|postrider-)`)
)

const reservedTypePrefix = "postrider."

// complete fills in the defaults of a message.
func (w *Writer) complete(m *Message) error {
	if m.SchemaVersion == 0 {
		m.SchemaVersion = 1
	}
	if m.ContentType == "" {
		m.ContentType = "application/json"
	}
	if m.ID == (EventID{}) {
		id, err := newEventID(w.now(), w.random)
		if err != nil {
			return err
		}
		m.ID = id
	}
	return nil
}

// validate refuses what the database, a relay or a consumer would refuse later, when nobody can mend it any more.
func (w *Writer) validate(index int, m *Message) error {
	for _, check := range []struct {
		field string
		find  func() *problem
	}{
		{"event_type", m.typeProblem},
		{"ordering_key", m.keyProblem},
		{"aggregate_version", m.versionProblem},
		{"payload", func() *problem { return m.payloadProblem(w.maxPayload) }},
		{"schema_version", m.schemaProblem},
		{"destination", func() *problem { return textProblem(m.Destination, MaxTextBytes) }},
		{"content_type", m.contentTypeProblem},
		{"traceparent", m.traceparentProblem},
		{"headers", m.headersProblem},
		{"occurred_at", func() *problem { return timeProblem(m.OccurredAt) }},
		{"expires_at", m.expiryProblem},
	} {
		if p := check.find(); p != nil {
			return &FieldError{Index: index, Field: check.field, Problem: p.text, kind: p.kind}
		}
	}
	return nil
}

func (m *Message) typeProblem() *problem {
	switch {
	case !typeForm.MatchString(m.Type):
		return invalid("is not 1 to 200 letters, digits, dots, slashes, hyphens or underscores")
	case strings.HasPrefix(m.Type, reservedTypePrefix):
		return invalid("begins with postrider., which is reserved")
	default:
		return nil
	}
}

func (m *Message) keyProblem() *problem {
	switch {
	case m.Unordered && m.OrderingKey != "":
		return invalid("is set although the message is unordered")
	case !m.Unordered && m.OrderingKey == "":
		return invalid("is empty; say Unordered for a message without a key")
	default:
		return textProblem(m.OrderingKey, MaxKeyBytes)
	}
}

func (m *Message) versionProblem() *problem {
	switch {
	case m.Version < 0:
		return invalid("is less than 1")
	case m.Version > 0 && m.Unordered:
		return invalid("needs an ordering_key")
	default:
		return nil
	}
}

func (m *Message) payloadProblem(limit int) *problem {
	switch {
	case m.Payload == nil:
		return invalid("is nil; an empty slice is an empty payload")
	case len(m.Payload) > limit:
		return tooLarge(fmt.Sprintf("is larger than %d bytes", limit))
	default:
		return nil
	}
}

func (m *Message) schemaProblem() *problem {
	if m.SchemaVersion < 1 {
		return invalid("is less than 1")
	}
	return nil
}

func (m *Message) contentTypeProblem() *problem {
	if !contentTypeForm.MatchString(m.ContentType) {
		return invalid("is not 1 to 255 printable ASCII characters")
	}
	return nil
}

func (m *Message) traceparentProblem() *problem {
	if m.Traceparent != "" && !traceparentForm.MatchString(m.Traceparent) {
		return invalid("is not in the form of W3C Trace Context")
	}
	return nil
}

func (m *Message) headersProblem() *problem {
	if len(m.Headers) > MaxHeaders {
		return tooLarge(fmt.Sprintf("are more than %d", MaxHeaders))
	}
	size := 0
	for name, value := range m.Headers {
		if p := headerProblem(name, value); p != nil {
			return p
		}
		size += len(name) + travelBytes(value)
	}
	if size > MaxHeaderBytes {
		return tooLarge(fmt.Sprintf("are larger than %d bytes as they travel", MaxHeaderBytes))
	}
	return nil
}

func headerProblem(name, value string) *problem {
	switch {
	case !headerNameForm.MatchString(name):
		return invalid("have a name not of the form ^[a-z][a-z0-9-]{0,62}$")
	case reservedHeader(name):
		return invalid("have the name " + name + ", which is reserved")
	case strings.ContainsAny(value, "\r\n"):
		return invalid("have a line break in the value of " + name)
	case strings.ContainsRune(value, 0):
		return &problem{kind: ErrNUL, text: "have a NUL in the value of " + name}
	case !utf8.ValidString(value):
		return invalid("have a value of " + name + " that is not UTF-8")
	default:
		return nil
	}
}

// reservedHeader says whether a name is the envelope's own, or one by which a broker is told what to do.
func reservedHeader(name string) bool {
	switch name {
	case "event-id", "event-type", "schema-version", "ordering-key", "aggregate-version", "occurred-at", "source",
		"content-type", "stream", "traceparent",
		"cc", "bcc", "expiration", "user-id", "reply-to", "delivery-mode", "priority", "cluster-id":
		return true
	default:
		return reservedPrefix.MatchString(name)
	}
}

// travelBytes is the length of a header value as a broker carries it: %XX for what is not plain.
func travelBytes(value string) int {
	n := len(value)
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '%' {
			n += 2
		}
	}
	return n
}

func (m *Message) expiryProblem() *problem {
	if !m.ExpiresAt.IsZero() && !m.Unordered {
		return invalid("is for unordered messages only: an expired one would leave a hole in its key")
	}
	return timeProblem(m.ExpiresAt)
}

func timeProblem(t time.Time) *problem {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return invalid("is not between the years 1 and 9999")
	}
	return nil
}

// textProblem refuses what PostgreSQL does not store as text, or what is too long for an index.
func textProblem(s string, limit int) *problem {
	switch {
	case len(s) > limit:
		return invalid(fmt.Sprintf("is longer than %d bytes", limit))
	case strings.ContainsRune(s, 0):
		return &problem{kind: ErrNUL, text: "holds a NUL"}
	case !utf8.ValidString(s):
		return invalid("is not UTF-8")
	default:
		return nil
	}
}

// together knows what messages of one call have to do with each other.
type together struct {
	last map[keyOf]int64
	ids  map[EventID]struct{}
}

type keyOf struct{ destination, orderingKey string }

func newTogether() *together {
	return &together{last: make(map[keyOf]int64), ids: make(map[EventID]struct{})}
}

// add refuses a message that is right alone but not beside the earlier ones, and remembers it otherwise.
func (t *together) add(index int, m *Message) error {
	if _, twice := t.ids[m.ID]; twice {
		return &FieldError{
			Index:   index,
			Field:   "event_id",
			Problem: "is that of another message here",
			kind:    ErrIDInUse,
		}
	}
	if !m.Unordered {
		k := keyOf{m.Destination, m.OrderingKey}
		before, seen := t.last[k]
		switch {
		case seen && (before == 0) != (m.Version == 0):
			return &FieldError{
				Index: index, Field: "aggregate_version", kind: ErrInvalid,
				Problem: "is given for some messages of the key and left to the writer for others",
			}
		case seen && m.Version > 0 && m.Version <= before:
			return &FieldError{
				Index: index, Field: "aggregate_version", kind: ErrVersion,
				Problem: "is not above that of an earlier message of the key",
			}
		}
		t.last[k] = m.Version
	}
	t.ids[m.ID] = struct{}{}
	return nil
}
