package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/retry"
)

var (
	unitsStart   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	unitsBackoff = retry.Backoff{Initial: time.Second, Max: time.Second}
)

func after(seconds int) time.Time { return unitsStart.Add(time.Duration(seconds) * time.Second) }

func (u *units) gotThrough(unit, key string, at int) {
	u.succeeded(unit, success{key: key, at: after(at)}, after(at))
}

func (u *units) broke(unit string, at int) {
	u.failed(unit, broker.Confirmation{Reason: broker.ReasonNoAnswer}, after(at), unitsBackoff, 0)
}

func TestAWitnessIsAnotherKeyOfTheSameUnitSince(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		do   func(*units)
		want bool
	}{
		"nothing got through":                        {func(*units) {}, false},
		"another key got through since":              {func(u *units) { u.gotThrough("u", "b", 11) }, true},
		"another key got through before":             {func(u *units) { u.gotThrough("u", "b", 10) }, false},
		"the key itself got through since":           {func(u *units) { u.gotThrough("u", "a", 11) }, false},
		"another key got through another unit since": {func(u *units) { u.gotThrough("v", "b", 11) }, false},
		"another key and then the key itself": {
			func(u *units) { u.gotThrough("u", "b", 11); u.gotThrough("u", "a", 12) }, true,
		},
		"another key, and then the key itself time and again": {
			func(u *units) {
				u.gotThrough("u", "b", 11)
				for i := range 9 {
					u.gotThrough("u", "a", 12+i)
				}
			}, true,
		},
		"an outage since is no witness": {func(u *units) { u.gotThrough("u", "b", 5); u.broke("u", 11) }, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnits()
			tc.do(u)
			if got := u.witness("u", "a", after(10)); got != tc.want {
				t.Errorf("witness() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTimeWithAnOpenBreakerIsNoFailingTime(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		do   func(*units)
		want int
	}{
		"a unit that always worked":      {func(*units) {}, 10},
		"an outage within":               {func(u *units) { u.broke("u", 12); u.gotThrough("u", "b", 15) }, 7},
		"an outage that began before":    {func(u *units) { u.broke("u", 1); u.gotThrough("u", "b", 15) }, 5},
		"an outage that was over before": {func(u *units) { u.broke("u", 1); u.gotThrough("u", "b", 9) }, 10},
		"an outage that goes on":         {func(u *units) { u.broke("u", 13); u.broke("u", 18) }, 3},
		"an outage of all the time":      {func(u *units) { u.broke("u", 1) }, 0},
		"an outage of another unit":      {func(u *units) { u.broke("v", 12); u.gotThrough("v", "b", 15) }, 10},
		"two outages": {
			func(u *units) {
				u.broke("u", 11)
				u.gotThrough("u", "b", 13)
				u.broke("u", 15)
				u.gotThrough("u", "b", 16)
			}, 7,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnits()
			tc.do(u)
			if got, want := u.working("u", after(10), after(20)), time.Duration(tc.want)*time.Second; got != want {
				t.Errorf("working() = %v, want %v", got, want)
			}
		})
	}
}

func TestMoreOutagesThanAreRememberedCountAsOne(t *testing.T) {
	t.Parallel()
	u := newUnits()
	for i := range maxOutages + 10 {
		u.broke("u", 10*i)
		u.gotThrough("u", "b", 10*i+1)
	}
	last := after(10 * (maxOutages + 10))
	got := u.working("u", unitsStart, last)
	if least := time.Duration(9*(maxOutages-1)) * time.Second; got < least || got > least+20*time.Second {
		t.Errorf("working() = %v, want about %v: what is forgotten counts as an outage", got, least)
	}
}

func TestUnitsAreBoundedAndTheOldestIsForgotten(t *testing.T) {
	t.Parallel()
	u := newUnits()
	for i := range maxUnits {
		u.gotThrough(fmt.Sprint(i), "b", 11+i)
	}
	u.gotThrough("0", "b", 11+maxUnits)
	u.gotThrough("new", "b", 12+maxUnits)
	if len(u.by) != maxUnits {
		t.Errorf("%d units, want %d", len(u.by), maxUnits)
	}
	if !u.witness("0", "a", after(10)) || u.witness("1", "a", after(10)) {
		t.Error("another unit than the one unused for the longest was forgotten")
	}
}
