package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/retry"
)

func TestSharesAddUpAndDifferByOneAtMost(t *testing.T) {
	t.Parallel()
	for shards := 1; shards <= 64; shards++ {
		for n := 1; n <= 9; n++ {
			live := make([][16]byte, n)
			for i := range live {
				live[i] = [16]byte{byte(3 * i)}
			}
			sum := 0
			for i := range live {
				one := share(shards, live, live[i])
				if one != shards/n && one != shards/n+1 {
					t.Errorf("share of %d shards among %d = %d", shards, n, one)
				}
				sum += one
			}
			if sum != shards {
				t.Errorf("shares of %d shards among %d add up to %d", shards, n, sum)
			}
		}
	}
}

func TestAProcessNobodyHasHeardOfYetCountsItself(t *testing.T) {
	t.Parallel()
	if got := share(8, [][16]byte{{1}}, [16]byte{9}); got != 4 {
		t.Errorf("share = %d, want 4 of 8 for two", got)
	}
	if got := share(8, nil, [16]byte{9}); got != 8 {
		t.Errorf("share = %d, want all for one", got)
	}
}

func TestIdleLooksGetRarer(t *testing.T) {
	t.Parallel()
	least := 200 * time.Millisecond
	pause := least
	for _, times := range []int{2, 3, 4, 5, 5} {
		if pause = nextPause(pause, least, false); pause != time.Duration(times)*least {
			t.Errorf("pause = %v, want %d times %v", pause, times, least)
		}
	}
	if pause = nextPause(pause, least, true); pause != least {
		t.Errorf("pause = %v after something was found, want %v", pause, least)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	valid := Config{
		Holder: [16]byte{1}, Shards: 8, Broker: "nats", Unit: "ORDERS", LeaseDuration: 30 * time.Second,
		LeaseMargin: 5 * time.Second, QueryTimeout: time.Second, Retention: time.Hour, DrainTimeout: time.Second,
		RunPolicy: Run, Backoff: retry.Backoff{Initial: time.Second, Max: time.Minute},
		Budget: retry.Budget{MaxAttempts: 10, MaxElapsed: time.Hour}, Share: retry.Share{Percent: 20, MinPerSecond: 10},
		Batch: Batch{MaxMessages: 500, MaxBytes: 4 << 20, PollInterval: time.Second, PublishTimeout: 10 * time.Second},
	}
	if err := valid.Validate(); err != nil {
		t.Fatalf("Validate() = %v", err)
	}
	cases := map[string]func(*Config){
		"no holder":                   func(c *Config) { c.Holder = [16]byte{} },
		"no shards":                   func(c *Config) { c.Shards = 0 },
		"no broker":                   func(c *Config) { c.Broker = "" },
		"no unit":                     func(c *Config) { c.Unit = "" },
		"no lease margin":             func(c *Config) { c.LeaseMargin = 0 },
		"no query timeout":            func(c *Config) { c.QueryTimeout = 0 },
		"no retention":                func(c *Config) { c.Retention = 0 },
		"an unknown policy":           func(c *Config) { c.RunPolicy = "Stop" },
		"no backoff":                  func(c *Config) { c.Backoff = retry.Backoff{} },
		"no retry budget":             func(c *Config) { c.Budget = retry.Budget{} },
		"no retry share":              func(c *Config) { c.Share = retry.Share{} },
		"an empty batch":              func(c *Config) { c.Batch.MaxMessages = 0 },
		"no bytes":                    func(c *Config) { c.Batch.MaxBytes = 0 },
		"no poll interval":            func(c *Config) { c.Batch.PollInterval = 0 },
		"no publish timeout":          func(c *Config) { c.Batch.PublishTimeout = 0 },
		"a publish beyond its lease":  func(c *Config) { c.Batch.PublishTimeout = 25 * time.Second },
		"a publish at the very limit": func(c *Config) { c.Batch.PublishTimeout = 26 * time.Second },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := valid
			change(&c)
			if err := c.Validate(); !errors.Is(err, ErrInvalidConfig) {
				t.Errorf("Validate() = %v, want %v", err, ErrInvalidConfig)
			}
		})
	}
}
