package broker

import (
	"maps"
	"slices"
	"testing"
	"time"
)

func TestNotesAreWarningsForAWhile(t *testing.T) {
	t.Parallel()
	var n Notes
	start := time.Unix(1_700_000_000, 0)
	n.Add(WarnStalled, "first", start)
	n.Add(WarnMayDiscard, "second", start.Add(time.Minute))
	n.Add(WarnStalled, "third", start.Add(2*time.Minute))
	both := []Warning{{WarnMayDiscard, "second"}, {WarnStalled, "third"}}
	slices.SortFunc(both, func(a, b Warning) int {
		if a.Reason < b.Reason {
			return -1
		}
		return 1
	})
	for after, want := range map[time.Duration][]Warning{
		10 * time.Minute:             both,
		11*time.Minute + time.Second: {{WarnStalled, "third"}},
		12*time.Minute + time.Second: nil,
	} {
		fresh := Notes{by: make(map[WarningReason]note)}
		maps.Copy(fresh.by, n.by)
		if got := fresh.Warnings(start.Add(after)); !slices.Equal(got, want) {
			t.Errorf("after %s: %v, want %v", after, got, want)
		}
	}
}
