package consumer

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/verdict"
)

func valid() Config {
	return Config{
		Name: "n", Resource: "ns/n", UID: "1", RunPolicy: Run, MaxBytes: 1, Lanes: 1, MaxBatch: 1, HandlerTimeout: 1,
		Retention: 1, Backoff: retry.Backoff{Initial: time.Second, Max: time.Minute},
	}
}

func TestAConfigThatWouldLoseOrHangIsRefused(t *testing.T) {
	t.Parallel()
	if err := valid().Validate(); err != nil {
		t.Fatalf("Validate() of a good config = %v", err)
	}
	cases := map[string]func(*Config){
		"no name":                          func(c *Config) { c.Name = "" },
		"an unknown policy":                func(c *Config) { c.RunPolicy = "Stop" },
		"no lane":                          func(c *Config) { c.Lanes = 0 },
		"no bound for a statement":         func(c *Config) { c.HandlerTimeout = 0 },
		"an inbox that forgets at once":    func(c *Config) { c.Retention = 0 },
		"a replay the inbox has forgotten": func(c *Config) { c.ReplayHorizon = 2 },
		"a gap that is given up at once":   func(c *Config) { c.Rules = verdict.Rules{ApplyAfterGap: true} },
		"a retry without a pause":          func(c *Config) { c.Backoff = retry.Backoff{} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := valid()
			change(&c)
			if c.Validate() == nil {
				t.Error("Validate() accepts it")
			}
		})
	}
}

func TestThePauseGrows(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		attempts int
		failing  time.Duration
		want     time.Duration
	}{
		"the first failure waits at most the initial pause":  {1, 0, time.Second},
		"each attempt doubles it":                            {4, 0, 8 * time.Second},
		"failures that count no attempt grow with their age": {1, 8 * time.Second, 8 * time.Second},
		"the larger of both counts":                          {6, time.Second, 32 * time.Second},
		"it stops growing":                                   {1, 1000 * time.Hour, time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := valid().pauseFor(tc.attempts, tc.failing, 0.999999999)
			if got > tc.want || got < tc.want-time.Millisecond {
				t.Errorf("pause = %v, want at most %v", got, tc.want)
			}
		})
	}
}
