package up

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	// lineEvery is how often plain lines are written at most.
	lineEvery = 5 * time.Second
	// tellAgain is how long a trouble must have been gone to be told again.
	tellAgain = 30 * time.Second
	// indent is that of a line's continuation.
	indent = "    "
)

// screen shows views: redrawn in place on a terminal, as lines elsewhere.
type screen struct {
	out io.Writer
	// size is the terminal's columns and lines, nil where there is none.
	size   func() (width, height int)
	drawn  int // lines of the table that stands on the terminal
	rows   []string
	told   map[string]time.Time // when a trouble was last there
	lastAt time.Time            // when rows were written
	last   *view
	err    error
}

func newScreen(out io.Writer, size func() (width, height int)) *screen {
	return &screen{out: out, size: size, told: map[string]time.Time{}}
}

// draw shows a view.
func (s *screen) draw(v *view) error {
	if s.err != nil {
		return s.err
	}
	if s.size != nil {
		return s.redraw(v)
	}
	s.last = v
	s.lines(v)
	return s.err
}

// lines writes what changed: rows now and then, trouble at once and once.
func (s *screen) lines(v *view) {
	stamp := v.now.Format(time.TimeOnly) + " "
	for _, line := range v.trouble() {
		last, known := s.told[line]
		s.told[line] = v.now
		if !known || v.now.Sub(last) > tellAgain {
			s.write(stamp + line + "\n")
		}
	}
	for line, last := range s.told {
		if v.now.Sub(last) > tellAgain {
			delete(s.told, line)
		}
	}
	if v.now.Sub(s.lastAt) < lineEvery {
		return
	}
	rows := v.rows()
	if slices.Equal(rows, s.rows) {
		return
	}
	for _, line := range rows {
		s.write(stamp + line + "\n")
	}
	s.rows, s.lastAt = rows, v.now
}

func (s *screen) redraw(v *view) error {
	var table bytes.Buffer
	if err := v.writeTable(&table); err != nil {
		return err
	}
	width, height := s.size()
	var lines []string
	for line := range strings.Lines(table.String()) {
		lines = append(lines, cut(strings.TrimSuffix(line, "\n"), width)) // a line that wraps could not be erased
	}
	if trouble := v.trouble(); len(trouble) > 0 {
		lines = append(lines, "")
		for _, line := range trouble {
			lines = append(lines, wrap(line, width)...)
		}
	}
	if most := height - 1; height > 1 && len(lines) > most { // what has left the screen could not be erased
		lines = append(lines[:most-1], cut(fmt.Sprintf("... %d more lines", len(lines)-most+1), width))
	}
	var b strings.Builder
	s.erase(&b)
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	s.drawn = len(lines)
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
	if s.size != nil {
		s.erase(&b)
	}
	b.WriteString(line + "\n")
	s.write(b.String())
}

// keep leaves the table where it stands, or writes it where lines were written until now. What follows stands below it,
// over the ^C that a terminal may show.
func (s *screen) keep() error {
	s.drawn = 0
	if s.size != nil {
		s.write("\r")
		return s.err
	}
	if s.last == nil {
		return s.err
	}
	var table bytes.Buffer
	if err := s.last.writeTable(&table); err != nil {
		return err
	}
	s.write("\n" + table.String() + "\n")
	return s.err
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
	if runes := []rune(line); width > 0 && len(runes) > width {
		return string(runes[:width])
	}
	return line
}

// wrap breaks a line at spaces so that nothing of it is lost on the terminal.
func wrap(line string, width int) []string {
	if width <= 2*len(indent) {
		return []string{cut(line, width)}
	}
	var lines []string
	for rest := []rune(line); ; {
		if len(rest) <= width {
			return append(lines, string(rest))
		}
		at := width
		for at > len(indent) && rest[at] != ' ' {
			at--
		}
		if at == len(indent) { // a word longer than the line
			at = width
		}
		lines = append(lines, strings.TrimRight(string(rest[:at]), " "))
		rest = []rune(indent + strings.TrimLeft(string(rest[at:]), " "))
	}
}
