package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
)

const (
	wantReplicas    = 3
	duplicateWindow = 2 * time.Minute
)

// api runs a request to JetStream's API with its deadline, and ends it at once when the server refuses its subject:
// such a request is never answered.
func (s *session) api(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	stop := s.watch(func(d denied) {
		switch {
		case d.subscribe && strings.HasPrefix(d.subject, "_INBOX."):
			refuse(&broker.Error{
				Reason: broker.ReasonPermissionDenied,
				Detail: "the user may not subscribe to _INBOX.>, where answers arrive: allow it",
			})
		case !d.subscribe && strings.HasPrefix(d.subject, "$JS.API."):
			refuse(&broker.Error{
				Reason: broker.ReasonPermissionDenied,
				Detail: broker.Bounded("the user may not publish to " + d.subject + ": allow it"),
			})
		}
	})
	defer stop()
	err := request(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		if e, ok := errors.AsType[*broker.Error](cause); ok {
			return e
		}
	}
	return err
}

func (s *session) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	var info *jetstream.StreamInfo
	err := s.api(ctx, func(ctx context.Context) error {
		stream, err := s.js.Stream(ctx, name)
		if err == nil {
			info = stream.CachedInfo()
		}
		return err
	})
	return info, err
}

// ensure finds the stream, or makes it where the topology says so.
func (p *Publisher) ensure(ctx context.Context, s *session) error {
	cfg := p.conn.cfg
	subjects := streamSubjects(p.cfg.Subject, p.cfg.Allowed)
	info, err := s.ensureStream(ctx, cfg, subjects)
	if err != nil {
		return err
	}
	return p.checkStream(&info.Config)
}

// ensureStream returns the stream. A missing one is made with the subjects under Declare, and else an error that says
// how to make it.
func (s *session) ensureStream(
	ctx context.Context, cfg Config, subjects []string,
) (*jetstream.StreamInfo, error) {
	info, err := s.streamInfo(ctx, cfg.Stream)
	switch {
	case err == nil:
		return info, nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, stateError("look up stream "+cfg.Stream, err)
	case cfg.Topology != Declare || len(subjects) == 0:
		return nil, s.missingStream(cfg.Stream, subjects)
	}
	err = s.api(ctx, func(ctx context.Context) error {
		_, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: cfg.Stream, Subjects: subjects, Storage: jetstream.FileStorage, Replicas: s.replicas(),
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
			Duplicates: duplicateWindow, AllowDirect: true,
			Description: "made by Postrider; it never changes it",
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil // somebody else was first: what it is like is looked at below
		}
		return err
	})
	if err != nil {
		return nil, stateError("create stream "+cfg.Stream, err)
	}
	info, err = s.streamInfo(ctx, cfg.Stream)
	if err != nil {
		return nil, stateError("look up stream "+cfg.Stream, err)
	}
	return info, nil
}

// replicas is how many copies of a stream we want: those that survive a broken server, and one where there is only one
// server, which refuses more.
func (s *session) replicas() int {
	if s.nc.ConnectedClusterName() == "" {
		return 1
	}
	return wantReplicas
}

// missingStream says how to make the stream.
func (s *session) missingStream(name string, subjects []string) error {
	if len(subjects) == 0 {
		subjects = []string{"<subjects>"}
	}
	return &broker.Error{
		Reason: broker.ReasonStreamMissing,
		Detail: broker.Bounded(fmt.Sprintf("stream %s is missing: "+
			`nats stream add %s --subjects "%s" --storage file --replicas %d --retention limits --discard new --defaults`,
			name, name, strings.Join(subjects, ","), s.replicas())),
	}
}

// checkStream says why the stream can never take what we send.
func (p *Publisher) checkStream(cfg *jetstream.StreamConfig) error {
	mismatch := func(detail string) error {
		return &broker.Error{
			Reason: broker.ReasonStreamMismatch,
			Detail: broker.Bounded("stream " + cfg.Name + " " + detail),
		}
	}
	switch {
	case cfg.Mirror != nil:
		return mismatch("is a mirror and takes no messages: name the stream it mirrors")
	case cfg.Sealed:
		return mismatch("is sealed and takes no messages")
	case cfg.NoAck:
		return mismatch("has no_ack set, so that nothing is ever confirmed: make it without")
	case !anyCovers(cfg.Subjects, p.cfg.Subject):
		return mismatch("does not hold " + p.cfg.Subject + ": add it to the stream's subjects")
	}
	return nil
}

// streamSubjects returns what the stream holds now. The next Publish looks at the stream again.
func (p *Publisher) streamSubjects(ctx context.Context, s *session) ([]string, error) {
	p.distrust(s)
	name := p.conn.cfg.Stream
	info, err := s.streamInfo(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, s.missingStream(name, streamSubjects(p.cfg.Subject, p.cfg.Allowed))
	case err != nil:
		return nil, stateError("look up stream "+name, err)
	}
	return info.Config.Subjects, nil
}

// Check says whether the target is usable (the error is *broker.Error) and what about it may hurt later. Under Declare it
// makes a stream that is missing: a relay without messages would else call for one that it is going to make.
func (p *Publisher) Check(ctx context.Context) ([]broker.Warning, error) {
	s, err := p.conn.live(ctx)
	if err != nil {
		return nil, err
	}
	info, err := s.ensureStream(ctx, p.conn.cfg, streamSubjects(p.cfg.Subject, p.cfg.Allowed))
	if err != nil {
		return nil, err
	}
	return streamWarnings(&info.Config), p.checkStream(&info.Config)
}

// streamWarnings says how the stream can lose what it has confirmed.
func streamWarnings(cfg *jetstream.StreamConfig) []broker.Warning {
	var warnings []broker.Warning
	warn := func(reason broker.WarningReason, detail string) {
		warnings = append(warnings, broker.Warning{
			Reason: reason, Detail: broker.Bounded("stream " + cfg.Name + " " + detail),
		})
	}
	if cfg.Replicas < wantReplicas {
		warn(broker.WarnFewReplicas, "has "+strconv.Itoa(cfg.Replicas)+
			" replica(s): one broken server can lose confirmed messages; use 3")
	}
	if cfg.Storage == jetstream.MemoryStorage {
		warn(broker.WarnMayDiscard, "keeps messages in memory only: a restart of its servers loses them")
	}
	if limits := discarding(cfg); limits != "" {
		warn(broker.WarnMayDiscard, "drops messages, consumed or not, at "+limits)
	}
	if cfg.Retention == jetstream.InterestPolicy {
		warn(broker.WarnMayDiscard, "keeps a message only while a consumer exists: make the durables first")
	}
	return warnings
}

// discarding names the limits at which the stream drops messages that may not have been consumed.
func discarding(cfg *jetstream.StreamConfig) string {
	var limits []string
	if cfg.MaxAge > 0 {
		limits = append(limits, "max_age "+cfg.MaxAge.String())
	}
	old := cfg.Discard == jetstream.DiscardOld
	if old && cfg.MaxMsgs > 0 {
		limits = append(limits, "max_msgs "+strconv.FormatInt(cfg.MaxMsgs, 10))
	}
	if old && cfg.MaxBytes > 0 {
		limits = append(limits, "max_bytes "+strconv.FormatInt(cfg.MaxBytes, 10))
	}
	if cfg.MaxMsgsPerSubject > 0 && (old || !cfg.DiscardNewPerSubject) {
		limits = append(limits, "max_msgs_per_subject "+strconv.FormatInt(cfg.MaxMsgsPerSubject, 10))
	}
	return strings.Join(limits, ", ")
}
