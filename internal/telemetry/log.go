package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// maxTextBytes bounds each text of a log entry: a remote end may answer with anything.
const maxTextBytes = 2048

// redacted is all that is ever printed of a Redacted.
const redacted = "[redacted]"

// NewLogger returns the logger of a binary: one JSON object a line.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: bounded}))
}

// ParseLevel reads debug, info, warn or error.
func ParseLevel(s string) (slog.Level, error) {
	switch strings.ToLower(s) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, fmt.Errorf("a log level is debug, info, warn or error, not %q", s)
	}
}

// bounded shortens long texts. The JSON handler escapes control characters by itself.
func bounded(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(shorten(v))
	case error:
		a.Value = slog.StringValue(shorten(v.Error()))
	}
	return a
}

func shorten(s string) string {
	if len(s) <= maxTextBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxTextBytes], "") + " [shortened]"
}

// Redacted is a text that is a secret. However it is printed, it prints [redacted].
type Redacted string

// Secret returns the text itself, for the one place that needs it.
func (r Redacted) Secret() string { return string(r) }

// Format implements fmt.Formatter, for every verb.
func (Redacted) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// String implements fmt.Stringer.
func (Redacted) String() string { return redacted }

// MarshalText implements encoding.TextMarshaler, so that no encoder writes it out.
func (Redacted) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Redacted) LogValue() slog.Value { return slog.StringValue(redacted) }
