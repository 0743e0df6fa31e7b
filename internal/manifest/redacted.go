package manifest

import (
	"fmt"
	"log/slog"
)

// redacted is what stands for a secret value wherever it is printed.
const redacted = "[redacted]"

// Redacted is a secret value. However it is printed, logged or encoded, it does not show.
type Redacted struct{ value []byte }

// Reveal returns the value. It is to be written where it is needed and nowhere else.
func (r Redacted) Reveal() []byte { return r.value }

// String implements fmt.Stringer.
func (Redacted) String() string { return redacted }

// Format implements fmt.Formatter, so that no verb shows the bytes.
func (Redacted) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML too.
func (Redacted) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Redacted) LogValue() slog.Value { return slog.StringValue(redacted) }
