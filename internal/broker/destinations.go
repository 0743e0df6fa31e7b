package broker

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/internal/message"
)

// Destinations says where rows may go: a default, and the names that a row's destination column may hold.
type Destinations struct {
	fallback string
	allowed  [][]string
}

// NewDestinations reads the list of allowed destinations. A pattern is a list of tokens between dots: `*` inside a
// token stands for any characters but dots, a last token `>` for one or more tokens. So "orders.*" allows "orders.eu"
// but not "orders.eu.paid", and "orders.>" allows both. An empty list allows the default only.
func NewDestinations(fallback string, allowed []string) (Destinations, error) {
	d := Destinations{fallback: fallback}
	for _, pattern := range allowed {
		tokens := strings.Split(pattern, ".")
		for i, token := range tokens {
			switch {
			case token == "":
				return Destinations{}, fmt.Errorf("allowed destination %q has an empty token", pattern)
			case strings.Contains(token, ">") && (token != ">" || i != len(tokens)-1):
				return Destinations{}, fmt.Errorf(
					"allowed destination %q has > elsewhere than alone at its end",
					pattern,
				)
			}
		}
		d.allowed = append(d.allowed, tokens)
	}
	return d, nil
}

// Resolve returns the destination of a row: the default where the row names none, else the row's own if it is allowed.
func (d *Destinations) Resolve(m *message.Message) (string, bool) {
	name := m.Destination
	if name == "" || name == d.fallback {
		return d.fallback, true
	}
	for _, pattern := range d.allowed {
		if matchTokens(pattern, name) {
			return name, true
		}
	}
	return "", false
}

// Fallback returns the default destination.
func (d *Destinations) Fallback() string { return d.fallback }

func matchTokens(pattern []string, name string) bool {
	for i, want := range pattern {
		if want == ">" {
			return name != ""
		}
		token, rest, more := strings.Cut(name, ".")
		if token == "" || !matchToken(want, token) {
			return false
		}
		if i == len(pattern)-1 {
			return !more
		}
		if !more {
			return false
		}
		name = rest
	}
	return false
}

// matchToken matches one token against a pattern in which * stands for any characters.
func matchToken(pattern, token string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == token
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(token) < len(first)+len(last) || !strings.HasPrefix(token, first) || !strings.HasSuffix(token, last) {
		return false
	}
	token = token[len(first) : len(token)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(token, part)
		if at < 0 {
			return false
		}
		token = token[at+len(part):]
	}
	return true
}
