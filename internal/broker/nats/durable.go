package nats

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
)

// durable is the consumer as it is at the broker.
type durable struct {
	// created tells one durable of a name from the next: sequences and acknowledgements do not carry over.
	created time.Time
	cfg     jetstream.ConsumerConfig
}

// ensureDurable finds the stream and the durable. A missing durable is made, from the stored position where there is
// one; an existing one is never changed.
func (r *Receiver) ensureDurable(ctx context.Context, s *session) (durable, error) {
	stream, err := s.ensureStream(ctx, r.conn.cfg, r.cfg.FilterSubjects)
	if err != nil {
		return durable{}, err
	}
	if err := r.checkFilters(&stream.Config); err != nil {
		return durable{}, err
	}
	info, err := r.consumerInfo(ctx, s)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		info, err = r.createDurable(ctx, s, stream)
	}
	if err != nil {
		return durable{}, stateError("look up durable "+r.cfg.Durable, err)
	}
	if err := r.checkDurable(&info.Config); err != nil {
		return durable{}, err
	}
	return durable{created: info.Created, cfg: info.Config}, nil
}

// consumerInfo asks the durable's leader: a follower's numbers may be old.
func (r *Receiver) consumerInfo(ctx context.Context, s *session) (*jetstream.ConsumerInfo, error) {
	var info *jetstream.ConsumerInfo
	err := s.api(ctx, func(ctx context.Context) error {
		consumer, err := s.js.Consumer(ctx, r.conn.cfg.Stream, r.cfg.Durable)
		if err == nil {
			info = consumer.CachedInfo()
		}
		return err
	})
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, r.mismatch("is a push consumer: delete it, or name another durable")
	}
	return info, err
}

// createDurable makes the durable strictly: one that has come up meanwhile is not changed.
func (r *Receiver) createDurable(
	ctx context.Context, s *session, stream *jetstream.StreamInfo,
) (*jetstream.ConsumerInfo, error) {
	cfg := jetstream.ConsumerConfig{
		Durable:        r.cfg.Durable,
		FilterSubjects: r.cfg.FilterSubjects,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        r.cfg.AckWait,
		MaxDeliver:     -1,
		MaxAckPending:  r.cfg.MaxAckPending,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		ReplayPolicy:   jetstream.ReplayInstantPolicy,
		Description:    "made by Postrider; it never changes it",
	}
	if r.cfg.StartSequence != nil {
		start, known, err := r.cfg.StartSequence(ctx, incarnation(stream))
		if err != nil {
			return nil, &broker.Error{
				Reason: broker.ReasonNotSent,
				Detail: "the stored position to make the durable from cannot be read",
				Err:    err,
			}
		}
		if known {
			r.note(broker.WarnConsumerLost, "durable "+r.cfg.Durable+
				" was missing at the broker and is made again from the stored position")
		}
		// A position beyond the stream's end is of what it held before it was restored: starting there would skip.
		if known && start <= stream.State.LastSeq+1 {
			cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, max(start, 1)
		}
	}
	err := s.api(ctx, func(ctx context.Context) error {
		_, err := s.js.CreateConsumer(ctx, r.conn.cfg.Stream, cfg)
		if errors.Is(err, jetstream.ErrConsumerExists) || errors.Is(err, jetstream.ErrConsumerNameAlreadyInUse) {
			return nil // another process was first; what it made is looked at next
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.consumerInfo(ctx, s)
}

func (r *Receiver) mismatch(detail string) *broker.Error {
	return &broker.Error{
		Reason: broker.ReasonStreamMismatch, Detail: broker.Bounded("durable " + r.cfg.Durable + " " + detail),
	}
}

// checkFilters says which filter can never match anything in the stream.
func (r *Receiver) checkFilters(cfg *jetstream.StreamConfig) error {
	for _, filter := range r.cfg.FilterSubjects {
		matches := anyCovers(cfg.Subjects, filter) || cfg.Mirror != nil || len(cfg.Sources) > 0
		for _, subject := range cfg.Subjects {
			matches = matches || covers(filter, subject)
		}
		if !matches {
			return &broker.Error{
				Reason: broker.ReasonStreamMismatch,
				Detail: broker.Bounded(
					"stream " + cfg.Name + " holds no subject that the filter " + filter + " matches",
				),
			}
		}
	}
	return nil
}

// checkDurable says why an existing durable is not the one that the configuration means.
func (r *Receiver) checkDurable(cfg *jetstream.ConsumerConfig) error {
	filters := slices.Clone(cfg.FilterSubjects)
	if cfg.FilterSubject != "" {
		filters = append(filters, cfg.FilterSubject)
	}
	want := slices.Clone(r.cfg.FilterSubjects)
	slices.Sort(filters)
	slices.Sort(want)
	switch {
	case cfg.AckPolicy != jetstream.AckExplicitPolicy:
		return r.mismatch("has another ack policy than explicit: delete it, or name another durable")
	case !slices.Equal(filters, want):
		return r.mismatch(
			"has the filters [" + strings.Join(filters, " ") + "] instead of [" + strings.Join(want, " ") +
				"]: delete it, or name another durable",
		)
	case cfg.HeadersOnly:
		return r.mismatch("delivers headers only: delete it, or name another durable")
	case cfg.ReplayPolicy != jetstream.ReplayInstantPolicy:
		return r.mismatch("replays at the original pace: delete it, or name another durable")
	case len(cfg.PriorityGroups) > 0:
		return r.mismatch("has priority groups: delete it, or name another durable")
	}
	return nil
}

// durableWarnings says how the durable can lose messages or its own state.
func durableWarnings(name string, cfg *jetstream.ConsumerConfig) []broker.Warning {
	var warnings []broker.Warning
	if cfg.MaxDeliver > 0 {
		warnings = append(warnings, broker.Warning{
			Reason: broker.WarnDeliveryLimit,
			Detail: broker.Bounded(
				"durable " + name + " stops delivering a message after " + strconv.Itoa(cfg.MaxDeliver) +
					" times without telling anybody: set max_deliver to -1",
			),
		})
	}
	if cfg.InactiveThreshold > 0 {
		warnings = append(warnings, broker.Warning{
			Reason: broker.WarnMayExpire,
			Detail: broker.Bounded("durable " + name + " is deleted after " + cfg.InactiveThreshold.String() +
				" without a reader: set inactive_threshold to 0"),
		})
	}
	return warnings
}

// Check says whether the source is usable (the error is *broker.Error) and what about it may hurt later.
func (r *Receiver) Check(ctx context.Context) ([]broker.Warning, error) {
	s, err := r.conn.live(ctx)
	if err != nil {
		return nil, err
	}
	warnings := r.notes.Warnings(r.now())
	info, err := r.consumerInfo(ctx, s)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return warnings, r.state()
	}
	if err != nil {
		return warnings, stateError("look up durable "+r.cfg.Durable, err)
	}
	warnings = append(warnings, durableWarnings(r.cfg.Durable, &info.Config)...)
	if limit := info.Config.MaxAckPending; limit > 0 && info.NumAckPending >= limit && info.NumPending > 0 {
		warnings = append(warnings, broker.Warning{
			Reason: broker.WarnAckPending,
			Detail: broker.Bounded("durable " + r.cfg.Durable + " has " + strconv.Itoa(info.NumAckPending) +
				" messages delivered and not acknowledged, as many as max_ack_pending allows: nothing else is delivered"),
		})
	}
	if err := r.checkDurable(&info.Config); err != nil {
		return warnings, err
	}
	return warnings, r.state()
}

// Lag returns what the durable has not seen acknowledged, as its leader counts.
func (r *Receiver) Lag(ctx context.Context) (broker.Lag, error) {
	s, err := r.conn.live(ctx)
	if err != nil {
		return broker.Lag{}, err
	}
	info, err := r.consumerInfo(ctx, s)
	if err != nil {
		return broker.Lag{}, stateError("look up durable "+r.cfg.Durable, err)
	}
	outstanding := info.NumPending + uint64(max(info.NumAckPending, 0))
	lag := broker.Lag{Messages: int64(min(outstanding, math.MaxInt64))}
	if lag.Messages > 0 {
		lag.OldestTime = r.oldest(ctx, s, info.AckFloor.Stream+1)
	}
	return lag, nil
}

// oldest returns when the stream stored its first message from the sequence on that the filters match.
func (r *Receiver) oldest(ctx context.Context, s *session, from uint64) *time.Time {
	filters := r.cfg.FilterSubjects
	if len(filters) == 0 {
		filters = []string{">"}
	}
	var first *jetstream.RawStreamMsg
	err := s.api(ctx, func(ctx context.Context) error {
		stream, err := s.js.Stream(ctx, r.conn.cfg.Stream)
		if err != nil {
			return err //nolint:wrapcheck // the time is optional
		}
		for _, filter := range filters {
			msg, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(filter))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return err //nolint:wrapcheck // the time is optional
			}
			if first == nil || msg.Sequence < first.Sequence {
				first = msg
			}
		}
		return nil
	})
	if err != nil || first == nil {
		return nil // unknown is absent
	}
	return &first.Time
}
