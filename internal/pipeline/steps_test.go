package pipeline_test

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/test/testkit"
)

// pedometer counts the steps of the loops that are watched.
type pedometer struct {
	mu    sync.Mutex
	steps map[string]int
}

func (p *pedometer) Step(loop string, _ time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[loop]++
}

func (p *pedometer) Done(loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.steps, loop)
}

func (p *pedometer) counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.steps)
}

// goesOn waits until each loop that is watched now has made two more steps, or is watched no more: a watchdog would end a
// process that is well because of one that says once when its next step is due, and then never again.
func (p *pedometer) goesOn(t *testing.T) {
	t.Helper()
	before := p.counts()
	testkit.Eventually(t, patience, "several loops are watched", func() bool {
		before = p.counts()
		return len(before) > 3
	})
	var stand []string
	defer func() {
		if t.Failed() {
			t.Logf("%v stand", stand)
		}
	}()
	testkit.Eventually(t, 3*patience, "every loop that is watched goes on", func() bool {
		now := p.counts()
		stand = stand[:0]
		for loop, steps := range before {
			if n, watched := now[loop]; watched && n < steps+2 {
				stand = append(stand, loop)
			}
		}
		return len(stand) == 0
	})
}

func TestEveryLoopThatIsWatchedGoesOn(t *testing.T) {
	t.Parallel()
	watching := func() (*pedometer, pipeline.Options) {
		p := &pedometer{steps: make(map[string]int)}
		return p, pipeline.Options{
			Log: testkit.NewLog(t).Logger(), Registry: prometheus.NewRegistry(), AllowLoopback: true, Steps: p,
		}
	}
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		o := newOrders(t)
		steps, options := watching()
		r, err := pipeline.NewRelay(o.cfg, options)
		if err != nil {
			t.Fatal(err)
		}
		run(t, r)
		o.write(10)
		o.published(10)
		steps.goesOn(t)
	})
	t.Run("consumer", func(t *testing.T) {
		t.Parallel()
		b := newBilling(t)
		b.tables()
		steps, options := watching()
		c, err := pipeline.NewConsumer(b.cfg, options)
		if err != nil {
			t.Fatal(err)
		}
		run(t, c)
		b.stream()
		b.publish("k", 1, 1)
		b.applied(1)
		steps.goesOn(t)
	})
}
