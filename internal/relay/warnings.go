package relay

import (
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/shard"
	"github.com/postrider/postrider/internal/statusz"
)

// What a relay notices by itself that may hurt.
const (
	conditionSlow     = "PublishSlow"
	reasonNearTimeout = "NearTimeout"
	conditionWentBack = "ClockWentBack"
	reasonEarlier     = "EarlierThanWritten"
)

// warning is a condition that is left out while it does not hold.
func warning(kind, reason, message string) statusz.Condition {
	return statusz.Condition{Type: kind, Status: "True", Reason: reason, Message: message}
}

// wentBackFor is how long a relay tells that the database went back: long enough for a person to see it.
const wentBackFor = time.Hour

// Clock notices when a database shows an earlier state than it has shown. It belongs to a process, and outlives its relays:
// a database that was restored may be reached as another host, which makes a new one.
type Clock struct {
	mu sync.Mutex
	// wrote is when the last Join wrote, by the database's clock; noticed is when one found that to be gone.
	wrote, noticed time.Time
}

// joined compares what a Join found and wrote with when the one before it wrote. Every process of the relay moves on what
// they find there; how far, it may say otherwise than this one.
func (c *Clock) joined(now time.Time, j shard.Joined, lasts time.Duration) (wentBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrote := j.Until.Add(-lasts)
	wentBack = (j.Before != nil && j.Before.Before(c.wrote)) || wrote.Before(c.wrote)
	c.wrote = wrote
	if wentBack {
		c.noticed = now
	}
	return wentBack
}

func (c *Clock) conditions(now time.Time) []statusz.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noticed.IsZero() || now.Sub(c.noticed) > wentBackFor {
		return nil
	}
	return []statusz.Condition{warning(conditionWentBack, reasonEarlier,
		"the database shows an earlier state than this relay wrote: it was restored to an older point, or a copy took "+
			"over that lacks the last commits, or its clock was set back. postrider verify names events without a row")}
}

const (
	// paceWindow is how far back publishes count, in parts of a minute.
	paceWindow = 5
	// slowShare is one slow publish in so many, and fewSlow how many slow ones show nothing yet.
	slowShare, fewSlow = 100, 2
)

// pace counts how many publishes come near their timeout.
type pace struct {
	mu      sync.Mutex
	timeout time.Duration // that they are counted against
	minutes [paceWindow]struct {
		minute    int64
		all, slow int
	}
}

// published counts one. It is slow when it takes longer than half of the timeout. With another timeout all begins anew.
func (p *pace) published(now time.Time, took, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timeout != timeout {
		p.timeout = timeout
		clear(p.minutes[:])
	}
	minute := minuteOf(now)
	m := &p.minutes[minute%paceWindow]
	if m.minute != minute {
		m.minute, m.all, m.slow = minute, 0, 0
	}
	m.all++
	if took > timeout/2 {
		m.slow++
	}
}

// minuteOf numbers the minutes.
func minuteOf(now time.Time) int64 { return now.Unix() / 60 }

func (p *pace) conditions(now time.Time) []statusz.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	minute := minuteOf(now)
	all, slow := 0, 0
	for _, m := range p.minutes {
		if minute-m.minute < paceWindow {
			all, slow = all+m.all, slow+m.slow
		}
	}
	if slow <= fewSlow || slow*slowShare <= all {
		return nil
	}
	return []statusz.Condition{warning(conditionSlow, reasonNearTimeout, fmt.Sprintf(
		"more than one publish in %d took longer than %v: at batch.publishTimeout, twice that, it is cut and "+
			"sent again. Look at the broker and the way to it, or send less at once (batch.maxMessages)",
		slowShare, p.timeout/2))}
}
