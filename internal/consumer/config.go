package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/retry"
	"github.com/postrider/postrider/internal/verdict"
)

// RunPolicy says whether a consumer applies messages.
type RunPolicy string

// The policies.
const (
	// Run applies messages.
	Run RunPolicy = "Run"
	// Pause gives back what is not in a transaction, and takes nothing.
	Pause RunPolicy = "Pause"
	// Drain applies what was received, and takes nothing more.
	Drain RunPolicy = "Drain"
)

// Config says how a consumer works.
type Config struct {
	// Name is the consumer name, the scope of the inbox.
	Name string
	// Resource is the namespace/name of the resource, UID its identity.
	Resource string
	UID      string
	// Broker is the metric label, such as "nats"; Source the text for people, such as "nats/ORDERS".
	Broker string
	Source string

	RunPolicy RunPolicy
	// PerKey keeps the order of each ordering key; otherwise messages have no order.
	PerKey bool
	Rules  verdict.Rules
	// MaxBytes bounds a message's body.
	MaxBytes int64

	// Lanes is the number of batches at a time; a key is always in one lane.
	Lanes int
	// MaxBatch bounds the messages of a batch.
	MaxBatch int
	// HandlerTimeout bounds one statement of the handler, and about a whole batch.
	HandlerTimeout time.Duration
	// Backoff is the growing pause of a message whose statement fails.
	Backoff retry.Backoff

	// Retention is how long the inbox remembers; never shorter than ReplayHorizon.
	Retention     time.Duration
	ReplayHorizon time.Duration
	// Heartbeat is how often the broker hears of a delivery that still waits, well below the time after which it
	// delivers again. Defaults to 10 s.
	Heartbeat time.Duration
}

const defaultHeartbeat = 10 * time.Second

// Validate checks what would make a consumer hang or contradict itself. Bounds for people are the resource's.
func (c Config) Validate() error {
	switch {
	case c.Name == "", c.Resource == "", c.UID == "":
		return errors.New("name, resource and UID must be set")
	case c.RunPolicy != Run && c.RunPolicy != Pause && c.RunPolicy != Drain:
		return fmt.Errorf("run policy %q is none of Run, Pause, Drain", c.RunPolicy)
	case c.Lanes < 1 || c.MaxBatch < 1 || c.MaxBytes < 1:
		return errors.New("lanes, batch and message size must be at least 1")
	case c.HandlerTimeout <= 0:
		return errors.New("the handler's time must be bounded")
	case c.Retention <= 0:
		return errors.New("the inbox must remember for some time: what it forgets is applied again")
	case c.Retention < c.ReplayHorizon:
		return errors.New("the retention is below the replay horizon: a replayed message would be applied again")
	case c.Rules.ApplyAfterGap && c.Rules.GapTimeout <= 0:
		return errors.New("a gap that is given up needs a time")
	}
	return c.Backoff.Validate()
}

// complete fills in what may be left out.
func (c Config) complete() Config {
	if c.Heartbeat <= 0 {
		c.Heartbeat = defaultHeartbeat
	}
	return c
}

// live says whether a running consumer can take the other config over: what stands in the tables, and in which order it
// is read, keeps its meaning only within one run.
func (c Config) live(to Config) bool {
	return c.Name == to.Name && c.Resource == to.Resource && c.UID == to.UID && c.Broker == to.Broker &&
		c.Source == to.Source && c.PerKey == to.PerKey && c.Rules.Versions == to.Rules.Versions
}

// pauseFor returns the longest pause of a message whose statement failed: it doubles with each attempt, and where
// failures count no attempt, with the time that they have lasted.
func (c Config) pauseFor(attempts int, failing time.Duration, random float64) time.Duration {
	doublings := 1
	for since := c.Backoff.Initial; since < failing && since < c.Backoff.Max; since *= 2 {
		doublings++
	}
	return c.Backoff.Pause(max(attempts, doublings), random)
}
