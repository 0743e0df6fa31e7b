package testkit

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Log is what a test's loggers wrote, to be searched for what must or must not be there.
type Log struct {
	t testing.TB

	mu   sync.Mutex
	text bytes.Buffer
	over bool // the test has ended: t.Log would panic
}

// NewLog returns an empty log whose lines are also shown with the test's output.
func NewLog(t testing.TB) *Log {
	t.Helper()
	l := &Log{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = true
	})
	return l
}

// Logger returns a logger, at debug level, that writes to the test's output.
func Logger(t testing.TB) *slog.Logger {
	t.Helper()
	return NewLog(t).Logger()
}

// Logger returns a logger, at debug level, that writes here.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

var _ io.Writer = (*Log)(nil)

// Write takes one line.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.t.Log(strings.TrimSuffix(string(line), "\n"))
	}
	return l.text.Write(line)
}

// String returns everything written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Contains reports whether anything written so far contains the text.
func (l *Log) Contains(text string) bool { return strings.Contains(l.String(), text) }
