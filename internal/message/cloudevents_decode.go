package message

import (
	"bytes"
	"encoding/json"
	"strings"
)

// event collects the attributes of a CloudEvent.
type event struct {
	Envelope

	seen      map[string]bool
	subject   string
	partition string
}

// decodeBinary reads an event whose attributes are headers.
func decodeBinary(r *Record) (Envelope, error) {
	e := event{Envelope: Envelope{SchemaVersion: 1, Data: r.Body}, seen: make(map[string]bool)}
	var contentType string
	for i := range r.Headers {
		h := &r.Headers[i]
		name, binding, ours := attributeOf(h.Name)
		if !ours {
			if strings.EqualFold(h.Name, HeaderContentType) {
				contentType = h.Value
				continue
			}
			if err := e.addHeader(h); err != nil {
				return Envelope{}, err
			}
			continue
		}
		value := h.Value
		if plain, ok := UnescapeValue(value); ok && binding == NATSBinding {
			value = plain
		}
		if err := e.set(name, value); err != nil {
			return Envelope{}, err
		}
	}
	if contentType != "" && !e.seen[attributeContentType] {
		if err := e.set(attributeContentType, contentType); err != nil {
			return Envelope{}, err
		}
	}
	return e.envelope(r.Key)
}

// decodeStructured reads an event that is a JSON object.
func decodeStructured(r *Record) (Envelope, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(r.Body, &members); err != nil {
		return Envelope{}, refuse(InvalidEnvelope, "body", "is not the JSON object that its content type promises")
	}
	e := event{Envelope: Envelope{SchemaVersion: 1}, seen: make(map[string]bool)}
	for i := range r.Headers {
		h := &r.Headers[i]
		if _, _, copied := attributeOf(h.Name); copied || strings.EqualFold(h.Name, HeaderContentType) {
			continue // the object is right
		}
		if err := e.addHeader(h); err != nil {
			return Envelope{}, err
		}
	}
	for name, raw := range members {
		if name == memberData || name == memberDataBase64 || string(raw) == "null" {
			continue
		}
		value, ok := canonical(raw)
		if !ok {
			return Envelope{}, refuse(InvalidEnvelope, "body", "has an attribute that is no text, number or boolean")
		}
		if err := e.set(name, value); err != nil {
			return Envelope{}, err
		}
	}
	if err := e.takeData(members); err != nil {
		return Envelope{}, err
	}
	return e.envelope(r.Key)
}

// canonical returns an attribute's value as text.
func canonical(raw json.RawMessage) (string, bool) {
	if raw[0] != '"' {
		return string(raw), raw[0] != '{' && raw[0] != '['
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// takeData reads what the event is about: JSON as it stands, a text where the content type is another, or base64.
func (e *event) takeData(members map[string]json.RawMessage) error {
	data, plain := members[memberData]
	encoded, binary := members[memberDataBase64]
	switch {
	case plain && binary:
		return refuse(InvalidEnvelope, "body", "has data and data_base64")
	case binary:
		if err := json.Unmarshal(encoded, &e.Data); err != nil {
			return refuse(InvalidEnvelope, memberDataBase64, "is not base64")
		}
	case plain && data[0] == '"' && !isJSON(e.ContentType):
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return refuse(InvalidEnvelope, memberData, "is not text")
		}
		e.Data = []byte(text)
	case plain:
		e.Data = bytes.Clone(data)
	}
	return nil
}

// set takes an attribute. Those that we have no field for are headers.
func (e *event) set(name, value string) error {
	if e.seen[name] {
		return refuse(InvalidEnvelope, "attributes", "are there twice")
	}
	e.seen[name] = true
	switch name {
	case attributeSpecVersion:
		if value != specVersion {
			return refuse(InvalidEnvelope, name, "is not "+specVersion)
		}
		return nil
	case attributeSchemaVersion:
		return e.setSchemaVersion(name, value)
	case attributeAggregateVersion:
		return e.setAggregateVersion(name, value)
	case attributeTime:
		return e.setOccurredAt(name, value)
	default:
		return e.setAttribute(name, value)
	}
}

// setAttribute takes an attribute that is text.
func (e *event) setAttribute(name, value string) error {
	limit := MaxTextBytes
	var field *string
	switch name {
	case attributeID:
		field = &e.EventID
	case attributeType:
		field = &e.Type
	case attributeSource:
		field = &e.Source
	case attributeSubject:
		field, limit = &e.subject, MaxKeyBytes
	case attributePartition:
		field, limit = &e.partition, MaxKeyBytes
	case attributeContentType:
		field = &e.ContentType
	case attributeStream:
		field = &e.Stream
	case attributeTraceparent:
		field = &e.Traceparent
	default:
		return e.keep(name, value)
	}
	*field = value
	return checkText(name, value, limit, false)
}

// keep makes an attribute a header, as it stands.
func (e *event) keep(name, value string) error {
	if !storable(name) || !storable(value) {
		return refuse(UnstorableText, "attributes", "hold a name or value that is not UTF-8 text without NUL")
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string)
	}
	e.Headers[name] = value
	return nil
}

// envelope is the event once all of it is read. The ordering key is what its producer says of partitions, by an attribute
// or by the record's key; else the subject.
func (e *event) envelope(key []byte) (Envelope, error) {
	if !e.seen[attributeSpecVersion] {
		return Envelope{}, refuse(InvalidEnvelope, attributeSpecVersion, "is missing")
	}
	e.OrderingKey = e.partition
	if e.OrderingKey == "" && len(key) == 0 {
		e.OrderingKey = e.subject
	}
	if err := e.complete(key); err != nil {
		return Envelope{}, err
	}
	if e.subject != "" && e.subject != e.OrderingKey {
		if err := e.keep(attributeSubject, e.subject); err != nil {
			return Envelope{}, err
		}
	}
	return e.Envelope, nil
}
