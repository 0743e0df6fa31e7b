package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/retry"
)

// RunPolicy says what a relay does with its shards.
type RunPolicy string

// The run policies.
const (
	// Run publishes.
	Run RunPolicy = "Run"
	// Pause keeps the leases and publishes nothing.
	Pause RunPolicy = "Pause"
	// Drain finishes what is in flight, gives all shards back and takes none.
	Drain RunPolicy = "Drain"
)

// Config says how a relay works. Reconfigure takes RunPolicy, Batch, Backoff, Budget and Share over while it runs; the
// rest is fixed at New.
type Config struct {
	// Holder is the random id of this process, the same as its store's.
	Holder [16]byte
	// Shards is the number that was written into the outbox table.
	Shards int
	// Broker is the kind of broker, a metrics label such as "nats".
	Broker string
	// Destination is where messages go by default, as status shows it, such as "nats/orders.events".
	Destination string
	// Unit names the broker as a whole, such as "nats/ORDERS"; parts of it that can fail alone are named by a publisher
	// that is a broker.Router. While a unit fails, its messages wait.
	Unit string
	// Unordered is ordering mode None: a message that waits holds up no other.
	Unordered bool
	// LeaseDuration is how long a shard stays with a process that no longer answers. LeaseMargin is the part
	// of it in which a process no longer trusts its lease. PublishTimeout plus LeaseMargin is below LeaseDuration.
	LeaseDuration time.Duration
	LeaseMargin   time.Duration
	// QueryTimeout is the bound of one transaction of the store.
	QueryTimeout time.Duration
	// Retention is how long published rows are kept in the archive.
	Retention time.Duration
	// DrainTimeout bounds finishing and releasing when Run's context ends.
	DrainTimeout time.Duration

	RunPolicy RunPolicy
	Batch     Batch
	Backoff   retry.Backoff
	// Budget is what a message may use up until it becomes a dead letter.
	Budget retry.Budget
	// NoDeadLetters says that the outbox has no place for dead letters: what spent its budget is tried on.
	NoDeadLetters bool
	// Share bounds the retries by what else is sent to their unit.
	Share retry.Share
}

// Batch bounds what a lane reads and sends at once.
type Batch struct {
	// MaxMessages bounds the messages; MaxBytes the sum of their payloads and headers, and each payload.
	MaxMessages int
	MaxBytes    int64
	// PollInterval is the shortest time between two looks of a relay that has nothing to do; the longest is
	// five times that.
	PollInterval time.Duration
	// PublishTimeout bounds one publish of a batch.
	PublishTimeout time.Duration
}

// ErrInvalidConfig says that a Config contradicts itself.
var ErrInvalidConfig = errors.New("invalid relay config")

// Validate refuses values that would break a promise: no bound, no pause, a publish that outlives its lease.
func (c Config) Validate() error {
	if err := c.validateFixed(); err != nil {
		return err
	}
	if c.RunPolicy != Run && c.RunPolicy != Pause && c.RunPolicy != Drain {
		return fmt.Errorf("%w: run policy is %q, want Run, Pause or Drain", ErrInvalidConfig, c.RunPolicy)
	}
	if err := c.Backoff.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if err := errors.Join(c.Budget.Validate(), c.Share.Validate()); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return c.validateBatch()
}

func (c Config) validateBatch() error {
	switch b := c.Batch; {
	case b.MaxMessages < 1:
		return fmt.Errorf("%w: a batch of %d messages", ErrInvalidConfig, b.MaxMessages)
	case b.MaxBytes < 1:
		return fmt.Errorf("%w: a batch of %d bytes", ErrInvalidConfig, b.MaxBytes)
	case b.PollInterval <= 0:
		return fmt.Errorf("%w: poll interval is %v", ErrInvalidConfig, b.PollInterval)
	case b.PublishTimeout <= 0:
		return fmt.Errorf("%w: publish timeout is %v", ErrInvalidConfig, b.PublishTimeout)
	case b.PublishTimeout+c.LeaseMargin >= c.LeaseDuration:
		return fmt.Errorf("%w: publish timeout %v plus lease margin %v is not below lease duration %v",
			ErrInvalidConfig, b.PublishTimeout, c.LeaseMargin, c.LeaseDuration)
	default:
		return nil
	}
}

func (c Config) validateFixed() error {
	switch {
	case c.Holder == [16]byte{}:
		return fmt.Errorf("%w: the holder has no id", ErrInvalidConfig)
	case c.Shards < 1:
		return fmt.Errorf("%w: %d shards", ErrInvalidConfig, c.Shards)
	case c.Broker == "" || c.Unit == "":
		return fmt.Errorf("%w: broker or unit has no name", ErrInvalidConfig)
	case c.LeaseDuration <= 0 || c.LeaseMargin <= 0:
		return fmt.Errorf("%w: lease duration %v, margin %v", ErrInvalidConfig, c.LeaseDuration, c.LeaseMargin)
	case c.QueryTimeout <= 0 || c.DrainTimeout <= 0 || c.Retention <= 0:
		return fmt.Errorf("%w: query timeout, drain timeout or retention is not set", ErrInvalidConfig)
	default:
		return nil
	}
}

// fixed returns the part of a config that cannot change while a relay runs.
func (c Config) fixed() Config {
	c.RunPolicy, c.Batch, c.Backoff, c.Budget, c.Share = "", Batch{}, retry.Backoff{}, retry.Budget{}, retry.Share{}
	return c
}

// step is how many held rows of a key are sent, or freed, in one step while it drains.
func (b Batch) step() int { return min(max(b.MaxMessages/4, 1), maxStep) }

const (
	// maxStep bounds the rows of one key that a transaction frees.
	maxStep = 250
	// dueKeys bounds the waiting keys that one look finds.
	dueKeys = 64
	// rescanEvery is how often a lane reads from the very start: a net for rows that somebody inserted by hand below the
	// floor. While a long transaction of somebody else keeps dead rows from being cleaned away it passes over all of
	// them, so there are few of it among a lane's reads.
	rescanEvery = 30 * time.Second
	// ringPause is the shortest time between two looks, however many commits are told of.
	ringPause = 2 * time.Millisecond
	// idleFactor is how much longer than PollInterval an idle relay waits at most.
	idleFactor = 5
)
