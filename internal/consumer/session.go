package consumer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/verdict"
)

const (
	// maxOutstandingBytes is how many bytes of bodies may be outstanding before no more is received. It is a soft bound:
	// what the receiver has fetched by then comes on top.
	maxOutstandingBytes = 64 << 20
	// receiveStep is how long one wait for deliveries lasts at most.
	receiveStep = 10 * time.Second
	// parkedPoll and parkedPollMax bound the pause between looks for due keys.
	parkedPoll    = 200 * time.Millisecond
	parkedPollMax = time.Second
	// purgePeriod is how often old ids are looked for; purgeRounds how many batches one look forgets at most.
	purgePeriod = time.Minute
	purgeRounds = 100
)

// session is one time of consuming with a fixed set of lanes.
type session struct {
	*Consumer
	lanes       []*lane
	gate        gate
	soon        chan struct{} // a gap was filled: parked messages are due
	outstanding atomic.Int64  // bytes of bodies in lanes
	drain       atomic.Bool   // nothing more is received
	turn        atomic.Uint64 // spreads messages without a key
}

// session consumes until soft ends, the config needs another set of lanes, or another resource takes the name.
func (c *Consumer) session(soft, hard context.Context, cfg Config) {
	soft, stop := context.WithCancel(soft)
	defer stop()
	receive, stopReceiving := context.WithCancel(soft)
	defer stopReceiving()
	s := &session{Consumer: c, soon: make(chan struct{}, 1)}
	s.gate = gate{name: cfg.Name, perKey: cfg.PerKey, maxBytes: cfg.MaxBytes, handler: c.handler}
	for i := range cfg.Lanes {
		s.lanes = append(s.lanes, newLane(s, fmt.Sprintf("lane %d", i)))
	}
	c.log.InfoContext(soft, "Consuming", "name", cfg.Name, "lanes", cfg.Lanes)

	var movers, others sync.WaitGroup
	movers.Go(func() { s.receive(receive) })
	for _, l := range s.lanes {
		movers.Go(func() { l.run(soft, hard) })
	}
	for i := range 1 + cfg.Lanes/4 {
		others.Go(func() { s.drainParked(soft, hard, fmt.Sprintf("parked %d", i)) })
	}
	others.Go(func() { s.heartbeat(soft, hard) })
	others.Go(func() { s.upkeep(soft, stop) })
	others.Go(func() { s.follow(soft, stop, stopReceiving, cfg) })

	movers.Wait()
	for _, l := range s.lanes {
		l.release(hard)
	}
	stop()
	others.Wait()
	c.log.InfoContext(soft, "No longer consuming", "name", cfg.Name)
}

// follow ends the session, or only its receiving, when the config wants so.
func (s *session) follow(soft context.Context, stop, stopReceiving func(), began Config) {
	for {
		select {
		case <-soft.Done():
			return
		case <-s.changed:
		}
		now := s.cfg()
		switch {
		case now.RunPolicy == Pause || now.Lanes != began.Lanes || now.MaxBytes != began.MaxBytes ||
			now.Rules.ApplyAfterGap != began.Rules.ApplyAfterGap:
			stop()
			return
		case now.RunPolicy == Drain && !s.drain.Swap(true):
			stopReceiving()
			for _, l := range s.lanes {
				nudge(l.wake)
			}
		case now.RunPolicy == Run && s.draining(): // it was drained halfway: begin again
			stop()
			return
		}
	}
}

func (s *session) draining() bool { return s.drain.Load() }

// drainSoon wakes a loop that handles parked messages.
func (s *session) drainSoon() { nudge(s.soon) }

// receive hands deliveries to their lanes.
func (s *session) receive(ctx context.Context) {
	defer s.steps.Done("receive")
	failures := 0
	for ctx.Err() == nil {
		s.steps.Step("receive", 2*receiveStep)
		if s.outstanding.Load() > maxOutstandingBytes {
			pauseFor(ctx, lookAgain)
			continue
		}
		err := s.receiveSome(ctx)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		if s.health.source(err) {
			s.log.WarnContext(ctx, "Receiving nothing, trying again", "err", err)
		}
		pauseFor(ctx, environmentPause.Pause(failures, s.random()))
	}
}

func (s *session) receiveSome(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, receiveStep)
	defer cancel()
	got, err := s.receiver.Receive(wait)
	now := s.now()
	for _, d := range got {
		e := &entry{delivery: d, item: s.gate.admit(d.Record, d.Position), beat: now}
		s.outstanding.Add(int64(len(d.Body)))
		s.lane(e.item).push(e)
	}
	s.metrics.receivedFrom(s.cfg().Broker, len(got))
	var known *broker.Error
	if err != nil && !errors.As(err, &known) && wait.Err() != nil {
		err = nil // there was nothing, or the session ends
	}
	if err == nil && ctx.Err() == nil {
		s.health.source(nil)
	}
	return err
}

// lane returns the lane of a message's key, always the same, or the next in turn for a message without one.
func (s *session) lane(it *verdict.Item) *lane {
	n := uint64(len(s.lanes))
	if !it.Keyed {
		return s.lanes[s.turn.Add(1)%n]
	}
	return s.lanes[binary.BigEndian.Uint64(it.Key[8:])%n]
}

// heartbeat tells the broker of deliveries that wait.
func (s *session) heartbeat(soft, hard context.Context) {
	defer s.steps.Done("heartbeat")
	every := s.cfg().Heartbeat
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		s.steps.Step("heartbeat", every+settleTimeout)
		select {
		case <-soft.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(hard, settleTimeout)
		for _, l := range s.lanes {
			l.beat(ctx, every/2)
		}
		cancel()
	}
}

// drainParked handles parked messages whose time has come.
func (s *session) drainParked(soft, hard context.Context, name string) {
	defer s.steps.Done(name)
	idle := parkedPoll
	failures := 0
	for soft.Err() == nil {
		cfg := s.cfg()
		s.steps.Step(name, time.Minute+8*cfg.HandlerTimeout)
		start := s.now()
		job := s.job(cfg)
		job.Apart = failures >= apartAfter
		done, err := s.store.Drain(hard, job, s.gate.admit)
		if err != nil {
			failures++
			s.rested(soft, s.parkedFailed(hard, name, err, failures))
			continue
		}
		failures = 0
		s.healed(name)
		if !done.Found {
			s.rested(soft, idle)
			idle = min(parkedPollMax, idle*3/2)
			continue
		}
		idle = parkedPoll
		s.metrics.transaction(s.now().Sub(start))
		s.metrics.gapsGivenUp(done.Skipped)
		for _, d := range done.Decisions {
			s.decided(d)
		}
		if done.Skipped > 0 {
			s.log.WarnContext(hard, "Missing versions were given up after the gap time-out", "gaps", done.Skipped)
		}
	}
}

func (s *session) parkedFailed(hard context.Context, name string, err error, failures int) time.Duration {
	var t *verdict.Trouble
	if !errors.As(err, &t) || t.Kind == verdict.Stopping || hard.Err() != nil {
		return parkedPollMax
	}
	s.metrics.failed(t)
	if t.Kind == verdict.Again || t.Kind == verdict.OutcomeUnknown {
		return againPause.Pause(failures, s.random())
	}
	s.troubled(hard, name, t)
	return environmentPause.Pause(failures, s.random())
}

// rested waits for a time, less when parked messages become due.
func (s *session) rested(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.soon:
	}
}

// upkeep keeps the consumer name and purges the inbox.
func (s *session) upkeep(ctx context.Context, stop func()) {
	defer s.steps.Done("upkeep")
	claim := time.NewTicker(ownerLease / 3)
	defer claim.Stop()
	purge := time.NewTimer(time.Duration(s.random() * float64(purgePeriod))) // processes take turns
	defer purge.Stop()
	for {
		s.steps.Step("upkeep", 2*ownerLease)
		select {
		case <-ctx.Done():
			return
		case <-claim.C:
			if s.renew(ctx) {
				stop()
				return
			}
		case <-purge.C:
			s.purge(ctx)
			purge.Reset(purgePeriod)
		}
	}
}

// renew says whether another resource has taken the consumer name.
func (s *session) renew(ctx context.Context) (lost bool) {
	err := s.store.Claim(ctx, s.cfg().owner())
	if _, inUse := errors.AsType[*verdict.NameInUseError](err); inUse {
		s.health.opened(err)
		s.log.WarnContext(ctx, "Not consuming any more", "err", err)
		return true
	}
	return false // any other error shows where messages are applied
}

func (s *session) purge(ctx context.Context) {
	cfg := s.cfg()
	for range purgeRounds {
		s.steps.Step("upkeep", 2*ownerLease)
		more, err := s.store.Purge(ctx, max(cfg.Retention, cfg.ReplayHorizon))
		if err != nil && ctx.Err() == nil {
			s.log.DebugContext(ctx, "The inbox was not purged", "err", err)
		}
		if err != nil || !more {
			return
		}
	}
}

// pauseFor waits for a time or the context's end.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
