package up

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// screen shows views: redrawn in place on a terminal, as lines elsewhere.
type screen struct {
	out io.Writer
	// width is the terminal's, nil where there is none.
	width   func() int
	drawn   int // lines of the table that stands on the terminal
	rows    []string
	trouble []string
	lastAt  time.Time
	err     error
}

func newScreen(out io.Writer, width func() int) *screen { return &screen{out: out, width: width} }

// draw shows a view.
func (s *screen) draw(v view) error {
	if s.err != nil {
		return s.err
	}
	if s.width != nil {
		return s.redraw(v)
	}
	if v.now.Sub(s.lastAt) < lineEvery {
		return s.err
	}
	s.lastAt = v.now
	rows, trouble := v.rows(), v.trouble()
	if slices.Equal(rows, s.rows) && slices.Equal(trouble, s.trouble) {
		return s.err
	}
	for _, line := range rows {
		s.write(v.now.Format(time.TimeOnly) + " " + line + "\n")
	}
	for _, line := range trouble {
		if !slices.Contains(s.trouble, line) { // what stays wrong is told once
			s.write(v.now.Format(time.TimeOnly) + " " + line + "\n")
		}
	}
	s.rows, s.trouble = rows, trouble
	return s.err
}

func (s *screen) redraw(v view) error {
	var table bytes.Buffer
	if err := v.writeTable(&table); err != nil {
		return err
	}
	var b strings.Builder
	s.erase(&b)
	width := s.width()
	for line := range strings.Lines(table.String()) {
		b.WriteString(cut(line, width)) // a line that wraps could not be erased
		s.drawn++
	}
	s.write(b.String())
	return s.err
}

// erase moves to the table's first line and clears to the end.
func (s *screen) erase(b *strings.Builder) {
	if s.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// say writes a line that stays.
func (s *screen) say(line string) {
	var b strings.Builder
	if s.width != nil {
		s.erase(&b)
	}
	b.WriteString(line + "\n")
	s.write(b.String())
}

func (s *screen) write(text string) {
	if s.err != nil {
		return
	}
	if _, err := io.WriteString(s.out, text); err != nil {
		s.err = fmt.Errorf("show status: %w", err)
	}
}

// cut shortens a line to the terminal's width.
func cut(line string, width int) string {
	runes := []rune(strings.TrimSuffix(line, "\n"))
	if width > 0 && len(runes) > width {
		runes = runes[:width]
	}
	return string(runes) + "\n"
}
