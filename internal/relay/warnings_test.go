package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/shard"
)

// P17: a database that shows less than was written to it is told of for an hour.
func TestADatabaseThatWentBackIsNoticed(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(after time.Duration) *time.Time { t := noon.Add(after); return &t }
	type join struct {
		before *time.Time    // what the Join found
		clock  time.Duration // the database's, after noon
	}
	for name, tc := range map[string]struct {
		joins []join
		want  bool
	}{
		"the first time": {[]join{{nil, 0}}, false},
		"the first time where it is known already": {[]join{{at(time.Hour), 0}}, false},
		"what was written is found":                {[]join{{nil, 0}, {at(lease), 10 * time.Second}}, false},
		"others have written since":                {[]join{{nil, 0}, {at(time.Hour), time.Hour}}, false},
		"others say that they stay for less long":  {[]join{{nil, 0}, {at(time.Second), 10 * time.Second}}, false},
		"something older is found":                 {[]join{{nil, 0}, {at(-time.Microsecond), time.Hour}}, true},
		"the last process had left":                {[]join{{nil, 0}, {nil, time.Hour}}, false},
		"the clock was set back":                   {[]join{{nil, 0}, {at(lease), -time.Second}}, true},
		"it is noticed, and then all is well":      {[]join{{nil, 0}, {at(-time.Hour), 0}, {at(lease), time.Second}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c Clock
			for _, j := range tc.joins {
				c.joined(noon, shard.Joined{Before: j.before, Until: noon.Add(j.clock + lease)}, lease)
			}
			if got := len(c.conditions(noon.Add(wentBackFor))) == 1; got != tc.want {
				t.Errorf("noticed: %v, want %v", got, tc.want)
			}
			if late := c.conditions(noon.Add(wentBackFor + 1)); late != nil {
				t.Errorf("after long it still tells %+v", late)
			}
		})
	}
}

// restoredStore is of a database that was restored between two Joins.
type restoredStore struct {
	Store
	joins []shard.Joined
}

func (s *restoredStore) Join(context.Context, time.Duration) (j shard.Joined, err error) {
	j, s.joins = s.joins[0], s.joins[1:]
	return j, nil
}

// P17: a database may be restored into a server that runs on. What is written then may lie below every floor.
func TestLanesReadAnewInADatabaseThatWentBack(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	one, other := &lane{nudge: make(chan struct{}, 1)}, &lane{nudge: make(chan struct{}, 1)}
	other.nudge <- struct{}{} // it has been nudged, and has not looked yet
	r := &Relay{
		store: &restoredStore{
			joins: []shard.Joined{{Until: noon.Add(time.Hour)}, {Before: &noon, Until: noon.Add(2 * time.Hour)}},
		},
		log:    slog.New(slog.DiscardHandler),
		now:    time.Now,
		health: newHealth(),
		idle:   newIdlers(),
		clock:  &Clock{},
		lanes:  map[int16]*lane{0: one, 1: other},
	}
	r.cfg.Store(&Config{LeaseDuration: time.Minute})
	m := newMembers(r)
	m.joined = true
	m.join(t.Context(), noon)
	if one.anew.Load() || other.anew.Load() {
		t.Error("a first look makes lanes read anew")
	}
	m.join(t.Context(), noon)
	for _, l := range []*lane{one, other} {
		if !l.anew.Load() || len(l.nudge) != 1 {
			t.Error("a lane is not told to read anew")
		}
	}
}

// A9: publishes that come near their timeout are told of while they are more than one in a hundred.
func TestPublishesNearTheirTimeoutAreTold(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Second
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		fast, slow int
		slowTook   time.Duration
		after      time.Duration
		want       bool
	}{
		"none":                      {},
		"all are fast":              {fast: 500},
		"one in a hundred is slow":  {fast: 495, slow: 5, slowTook: timeout},
		"more are slow":             {fast: 494, slow: 6, slowTook: timeout, want: true},
		"half of the timeout is no": {fast: 10, slow: 10, slowTook: timeout / 2},
		"more than half is":         {fast: 10, slow: 10, slowTook: timeout/2 + 1, want: true},
		"two show nothing":          {slow: 2, slowTook: timeout},
		"three do":                  {slow: 3, slowTook: timeout, want: true},
		"four minutes ago":          {slow: 3, slowTook: timeout, after: 4 * time.Minute, want: true},
		"six minutes ago":           {slow: 3, slowTook: timeout, after: 6 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p pace
			for range 5 {
				p.published(noon.Add(-time.Hour), timeout, timeout) // long ago
				p.published(noon, time.Minute, time.Minute)         // when the timeout was another one
			}
			for range tc.fast {
				p.published(noon, time.Millisecond, timeout)
			}
			for range tc.slow {
				p.published(noon, tc.slowTook, timeout)
			}
			if got := len(p.conditions(noon.Add(tc.after))) == 1; got != tc.want {
				t.Errorf("told: %v, want %v", got, tc.want)
			}
		})
	}
}
