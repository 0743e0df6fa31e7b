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

// wentBackFor is how long a relay tells that the database went back: long enough for a person to see it.
const wentBackFor = time.Hour

// clock notices when the database shows an earlier time than it has shown.
type clock struct {
	mu sync.Mutex
	// until is what the last Join wrote, noticed when one found that to be gone.
	until, noticed time.Time
}

// joined compares what a Join found and wrote with what the one before it had written: only this process writes it. Others
// forget it when it is long over.
func (c *clock) joined(now time.Time, j shard.Joined, lasts time.Duration) (wentBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.until.IsZero():
	case j.Before != nil:
		wentBack = j.Before.Before(c.until)
	default:
		wentBack = j.Until.Add(-lasts).Before(c.until)
	}
	wentBack = wentBack || j.Until.Before(c.until)
	c.until = j.Until
	if wentBack {
		c.noticed = now
	}
	return wentBack
}

func (c *clock) conditions(now time.Time) []statusz.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noticed.IsZero() || now.Sub(c.noticed) > wentBackFor {
		return nil
	}
	return []statusz.Condition{
		{
			Type:   conditionWentBack,
			Status: "True",
			Reason: reasonEarlier,
			Message: "the database lacks what this relay wrote to it: it was restored to an older point, or a copy took over that " +
				"lacks the last commits, or its clock was set back. postrider verify names events without a row",
		},
	}
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
	minutes [paceWindow]struct {
		minute    int64
		all, slow int
	}
}

// published counts one. It is slow when it takes longer than half of the timeout.
func (p *pace) published(now time.Time, took, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	minute := now.Unix() / int64(time.Minute/time.Second)
	m := &p.minutes[minute%paceWindow]
	if m.minute != minute {
		m.minute, m.all, m.slow = minute, 0, 0
	}
	m.all++
	if took > timeout/2 {
		m.slow++
	}
}

func (p *pace) conditions(now time.Time, timeout time.Duration) []statusz.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	minute := now.Unix() / int64(time.Minute/time.Second)
	all, slow := 0, 0
	for _, m := range p.minutes {
		if minute-m.minute < paceWindow {
			all, slow = all+m.all, slow+m.slow
		}
	}
	if slow <= fewSlow || slow*slowShare <= all {
		return nil
	}
	return []statusz.Condition{
		{
			Type:   conditionSlow,
			Status: "True",
			Reason: reasonNearTimeout,
			Message: fmt.Sprintf(
				"more than one publish in %d took longer than %v, half of batch.publishTimeout: what takes longer "+
					"than that is cut and sent again. Look at the broker and the way to it, or send less at once (batch.maxMessages)",
				slowShare,
				timeout/2,
			),
		},
	}
}
