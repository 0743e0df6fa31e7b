package retry

import (
	"errors"
	"fmt"
	"time"
)

// Share bounds retries by what else is sent to the same place: a share of the fresh messages, and some a second in any
// case. Without it, an outage that ends is followed by everything that failed at once.
type Share struct {
	// Percent of the fresh messages may be retries.
	Percent int
	// MinPerSecond retries a second are always allowed.
	MinPerSecond int
}

// ErrInvalidShare says that a Share would never let a retry through.
var ErrInvalidShare = errors.New("invalid retry share")

// Validate refuses a share of nothing.
func (s Share) Validate() error {
	if s.Percent < 0 || s.MinPerSecond < 1 {
		return fmt.Errorf("%w: %d percent, %d a second", ErrInvalidShare, s.Percent, s.MinPerSecond)
	}
	return nil
}

// shareWindow is how long a place may save up what it did not use.
const shareWindow = 10 * time.Second

// Purse holds the retries that a Share allows. The zero value starts with what MinPerSecond gives in a second. It is not
// safe for concurrent use; the caller that shares it guards it.
type Purse struct {
	at     time.Time
	coins  float64
	earned float64 // of coins, what fresh messages earned lately: it bounds what may be saved
	turn   time.Time
}

// Fresh notes messages that were sent for the first time.
func (p *Purse) Fresh(s Share, now time.Time, messages int) {
	p.refill(s, now)
	earned := float64(messages) * float64(s.Percent) / 100
	p.earned += earned
	p.coins = min(p.coins+earned, p.most(s))
}

// Take takes up to want retries and returns how many may be sent at now.
func (p *Purse) Take(s Share, now time.Time, want int) int {
	p.refill(s, now)
	n := min(want, int(p.coins))
	p.coins -= float64(n)
	return n
}

// Turn returns how long a retry that the purse has no coin for waits at now: as long as those take that were told to wait
// before it, at the rate at which coins come in, but for the given time at most. Without turns all of them would ask again
// and again, and each time move a row of the database.
func (p *Purse) Turn(s Share, now time.Time, most time.Duration) time.Duration {
	p.refill(s, now)
	if p.turn.Before(now) {
		p.turn = now
	}
	rate := float64(s.MinPerSecond) + p.earned/shareWindow.Seconds()
	p.turn = p.turn.Add(time.Duration(float64(time.Second) / rate))
	if last := now.Add(most); p.turn.After(last) {
		p.turn = last
	}
	return p.turn.Sub(now)
}

// refill adds what time brings and lets what was earned fade.
func (p *Purse) refill(s Share, now time.Time) {
	if p.at.IsZero() {
		p.at, p.coins = now, float64(s.MinPerSecond)
		return
	}
	passed := max(0, now.Sub(p.at))
	p.at = now
	p.earned *= max(0, 1-passed.Seconds()/shareWindow.Seconds())
	p.coins = min(p.coins+passed.Seconds()*float64(s.MinPerSecond), p.most(s))
}

// most is what may be saved up: a second of the least, and what fresh messages earned within the window.
func (p *Purse) most(s Share) float64 { return float64(s.MinPerSecond) + p.earned }
