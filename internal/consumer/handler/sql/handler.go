// Package sql is the handler that applies one SQL statement a message, chosen by its event type.
//
// It parses and chooses; the statements are run by the inbox's tables' owner, in the transaction that remembers the
// message. A statement is code of whoever writes the resource and runs with the rights of the database role.
package sql

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/verdict"
)

// Route maps event types, exact, "prefix.*" or "*", to a statement with named parameters.
type Route struct {
	EventTypes []string
	Statement  string
}

// Config is what the resource says.
type Config struct {
	Routes []Route
	// RefuseUnmatched makes a message that no route takes a dead letter; otherwise it is skipped.
	RefuseUnmatched bool
	// MaxDepth bounds how deep JSON data may be nested.
	MaxDepth int
}

// Handler chooses statements.
type Handler struct {
	statements []parsed
	exact      map[string]int
	prefixes   map[string]int // by prefix with its last dot; "" takes everything
	refuse     bool
	maxDepth   int
}

// New parses the statements. Its errors name the route and the place in the statement.
func New(cfg Config) (*Handler, error) {
	if len(cfg.Routes) == 0 {
		return nil, errors.New("sql: there is no route")
	}
	if cfg.MaxDepth <= 0 {
		return nil, errors.New("sql: the depth of JSON data must be bounded")
	}
	h := &Handler{
		exact: make(map[string]int), prefixes: make(map[string]int),
		refuse: cfg.RefuseUnmatched, maxDepth: cfg.MaxDepth,
	}
	for i, r := range cfg.Routes {
		if field, err := h.add(i, r); err != nil {
			return nil, fmt.Errorf("sql: routes[%d].%s: %w", i, field, err)
		}
	}
	return h, nil
}

// Mistake is what is wrong with a route.
type Mistake struct {
	// Route counts from 0; Field is the route's field.
	Route int
	Field string
	Err   error
}

// Check returns what New would refuse of the routes, all of it.
func Check(routes []Route) []Mistake {
	h := &Handler{exact: make(map[string]int), prefixes: make(map[string]int)}
	var mistakes []Mistake
	for i, r := range routes {
		if field, err := h.add(i, r); err != nil {
			mistakes = append(mistakes, Mistake{Route: i, Field: field, Err: err})
		}
	}
	return mistakes
}

// add takes a route, or says which of its fields is wrong.
func (h *Handler) add(i int, r Route) (field string, err error) {
	p, err := parse(r.Statement)
	if err != nil {
		return "statement", err
	}
	h.statements = append(h.statements, p)
	for _, t := range r.EventTypes {
		if err := h.claim(t, i); err != nil {
			return "eventTypes", err
		}
	}
	return "", nil
}

func (h *Handler) claim(eventType string, route int) error {
	table, name := h.exact, eventType
	if prefix, wild := strings.CutSuffix(eventType, "*"); wild {
		table, name = h.prefixes, prefix
		if prefix != "" && !strings.HasSuffix(prefix, ".") {
			return fmt.Errorf("%q: the star must follow a dot or stand alone", eventType)
		}
	}
	if eventType == "" {
		return errors.New("an event type is empty")
	}
	if other, taken := table[name]; taken {
		return fmt.Errorf("%q is taken by routes[%d]", eventType, other)
	}
	table[name] = route
	return nil
}

// match returns the route of an event type: an exact one first, then the longest prefix.
func (h *Handler) match(eventType string) (route int, found bool) {
	if route, found = h.exact[eventType]; found {
		return route, true
	}
	for end := len(eventType); end > 0; {
		end = strings.LastIndexByte(eventType[:end], '.')
		if end < 0 {
			break
		}
		if route, found = h.prefixes[eventType[:end+1]]; found {
			return route, true
		}
	}
	route, found = h.prefixes[""]
	return route, found
}

// Statements returns the statements in the order of their routes, as they are sent.
func (h *Handler) Statements() []string {
	statements := make([]string, len(h.statements))
	for i, p := range h.statements {
		statements[i] = p.sql
	}
	return statements
}

// Position returns the character of a route's statement as it was written, from 1, for a character of the statement
// as it is sent.
func (h *Handler) Position(route, position int) int {
	if route < 0 || route >= len(h.statements) {
		return 0
	}
	return h.statements[route].original(position)
}

// Route returns the statement for a message, none where the message only takes its place, or why it is refused.
func (h *Handler) Route(e *message.Envelope) (*verdict.Statement, *verdict.Refusal) {
	route, found := h.match(e.Type)
	if !found {
		if h.refuse {
			return nil, &verdict.Refusal{Reason: deadletter.Unmatched, Detail: "no route takes the event type"}
		}
		return nil, nil
	}
	p := h.statements[route]
	args := make([]any, len(p.parameters))
	for i, name := range p.parameters {
		if name == data {
			if refusal := checkJSON(e.Data, h.maxDepth); refusal != nil {
				return nil, refusal
			}
		}
		arg, err := argument(name, e)
		if err != nil {
			return nil, &verdict.Refusal{Reason: deadletter.InvalidEnvelope, Detail: "its headers are no JSON object"}
		}
		args[i] = arg
	}
	return &verdict.Statement{Route: route, SQL: p.sql, Args: args}, nil
}

// argument returns the value of a parameter; nil is SQL's NULL.
func argument(p parameter, e *message.Envelope) (any, error) {
	switch p {
	case eventID:
		return e.EventID, nil
	case eventType:
		return e.Type, nil
	case schemaVersion:
		return e.SchemaVersion, nil
	case orderingKey:
		return e.OrderingKey, nil
	case aggregateVersion:
		if e.AggregateVersion == 0 {
			return nil, nil
		}
		return e.AggregateVersion, nil
	case occurredAt:
		if e.OccurredAt.Equal(time.Time{}) {
			return nil, nil
		}
		return e.OccurredAt, nil
	case source:
		return e.Source, nil
	case headers:
		if e.Headers == nil {
			return []byte("{}"), nil
		}
		return json.Marshal(e.Headers)
	case data:
		return e.Data, nil
	default:
		return bytesOf(e.Data), nil
	}
}

// bytesOf keeps an empty payload apart from NULL.
func bytesOf(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
