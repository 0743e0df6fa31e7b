package up

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// later moves a view on and changes it.
func later(v *view, d time.Duration, change func(*view)) *view {
	moved := *v
	moved.relays, moved.consumers = append(
		moved.relays[:0:0],
		v.relays...), append(
		moved.consumers[:0:0],
		v.consumers...)
	moved.now = v.now.Add(d)
	if change != nil {
		change(&moved)
	}
	return &moved
}

func TestLinesAreWrittenOnChangeOnly(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out, nil)
	show := func(v *view) []string {
		t.Helper()
		out.Reset()
		if err := s.draw(v); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\r") {
			t.Errorf("escape codes where there is no terminal: %q", out.String())
		}
		if out.Len() == 0 {
			return nil
		}
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	first := busy()
	if got := show(first); len(got) != 4+3 || !strings.HasPrefix(got[0], "12:00:00 outboxrelay/orders: warning: ") {
		t.Errorf("the first look wrote %q, want all trouble and all rows", got)
	}
	still := func(v *view) { // the ages of what waits stay as they were
		v.relays[0].Status.Backlog, v.consumers[0].Status.Lag = nil, nil
	}
	if got := show(later(first, 5*time.Second, still)); len(got) != 3 {
		t.Errorf("changed rows wrote %q, want the rows and no trouble again", got)
	}
	if got := show(later(first, 12*time.Second, still)); got != nil {
		t.Errorf("nothing changed, and it wrote %q", got)
	}
	if got := show(later(first, 13*time.Second, nil)); len(got) != 3 {
		t.Errorf("a change after a rest wrote %q, want the rows", got)
	}
	if got := show(later(first, 14*time.Second, still)); got != nil {
		t.Errorf("a change within %s wrote %q, want to wait", lineEvery, got)
	}
	worse := func(v *view) {
		still(v)
		v.relays[0].Status.Conditions = append(v.relays[0].Status.Conditions,
			conditionOf("RetryingAmbiguous", "True", "Ambiguous", "a message fails"))
	}
	want := []string{"12:00:15 outboxrelay/orders: warning: RetryingAmbiguous: a message fails"}
	if diff := cmp.Diff(want, show(later(first, 15*time.Second, worse))); diff != "" {
		t.Errorf("new trouble waits for nothing (-want +got):\n%s", diff)
	}
	if got := show(later(first, 16*time.Second, worse)); got != nil {
		t.Errorf("trouble that stays wrote %q again", got)
	}
	show(later(first, 17*time.Second, still))
	if got := show(later(first, 20*time.Second, worse)); strings.Contains(strings.Join(got, "\n"), "Ambiguous") {
		t.Errorf("trouble that flaps wrote %q again", got)
	}
	for s := 21; s < 60; s++ {
		show(later(first, time.Duration(s)*time.Second, still))
	}
	if got := show(later(first, time.Minute, worse)); !strings.Contains(strings.Join(got, "\n"), "Ambiguous") {
		t.Errorf("trouble that comes back after a while wrote %q, want it told again", got)
	}
}

// terminal shows what a terminal of this width would: cursor up, clear to the end, text that wraps.
type terminal struct {
	width int
	lines []string
}

func (m *terminal) write(t *testing.T, text string) {
	t.Helper()
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			n, after, _ := strings.Cut(rest, "A\x1b[J")
			up, err := strconv.Atoi(n)
			if err != nil || up > len(m.lines) {
				t.Fatalf("cursor up %q of %d lines", n, len(m.lines))
			}
			m.lines, text = m.lines[:len(m.lines)-up], after
			continue
		}
		line, rest, ok := strings.Cut(text, "\n")
		if !ok {
			t.Fatalf("text without an end: %q", text)
		}
		for ; len([]rune(line)) > m.width; line = string([]rune(line)[m.width:]) {
			m.lines = append(m.lines, string([]rune(line)[:m.width]))
		}
		m.lines, text = append(m.lines, line), rest
	}
}

func TestTheTableIsRedrawnInPlace(t *testing.T) {
	t.Parallel()
	for _, width := range []int{60, 110} {
		var out bytes.Buffer
		s := newScreen(&out, func() (int, int) { return width, 100 })
		shown := &terminal{width: width}
		flush := func() {
			shown.write(t, out.String())
			out.Reset()
		}
		s.say("one")
		first := busy()
		for i, v := range []*view{
			first, later(first, time.Second, nil),
			later(first, 2*time.Second, func(v *view) { v.relays = v.relays[:1] }), // fewer lines than before
			later(first, 3*time.Second, nil),
		} {
			if err := s.draw(v); err != nil {
				t.Fatal(err)
			}
			flush()
			if n := strings.Count(strings.Join(shown.lines, "\n"), "OUTBOXRELAY"); n != 1 {
				t.Fatalf(
					"width %d: after look %d the table stands %d times:\n%s",
					width,
					i,
					n,
					strings.Join(shown.lines, "\n"),
				)
			}
		}
		s.say("two")
		flush()
		if diff := cmp.Diff([]string{"one", "two"}, shown.lines); diff != "" {
			t.Errorf("width %d: lines above the table (-want +got):\n%s", width, diff)
		}
		if err := s.draw(first); err != nil {
			t.Fatal(err)
		}
		flush()
		text := strings.Join(strings.Fields(strings.Join(shown.lines, " ")), " ")
		if want := "the database does not accept route 0 (SQLSTATE 42P01)"; !strings.Contains(text, want) {
			t.Errorf("width %d: trouble was cut: %s", width, text)
		}
	}
}

func TestATableLargerThanTheTerminalCanStillBeErased(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out, func() (int, int) { return 80, 6 })
	for range 2 {
		out.Reset()
		if err := s.draw(busy()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != 5 {
			t.Errorf("%d lines on a terminal of 6", n)
		}
		if !strings.Contains(out.String(), "more lines\n") {
			t.Error("nothing says that lines are missing")
		}
	}
}

func TestWrappedLinesLoseNothing(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		line  string
		width int
		want  []string
	}{
		"a line that fits":              {"a b c", 20, []string{"a b c"}},
		"a line that does not":          {"aaaa bbbb cccc dddd", 10, []string{"aaaa bbbb", "    cccc", "    dddd"}},
		"a word longer than the line":   {"0123456789012345", 10, []string{"0123456789", "    012345"}},
		"a terminal that is too narrow": {"0123456789", 8, []string{"01234567"}},
		"a terminal of unknown width":   {"0123456789", 0, []string{"0123456789"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, wrap(tc.line, tc.width)); diff != "" {
				t.Errorf("wrap (-want +got):\n%s", diff)
			}
		})
	}
}

// broken takes nothing.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the pipe is closed") }

func TestAnOutputThatIsGoneEndsTheRun(t *testing.T) {
	t.Parallel()
	s := newScreen(broken{}, nil)
	s.say("nobody hears it")
	if err := s.draw(busy()); err == nil || !strings.Contains(err.Error(), "the pipe is closed") {
		t.Errorf("draw() = %v", err)
	}
}
