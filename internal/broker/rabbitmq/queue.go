package rabbitmq

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/broker"
)

// Arguments of queues.
const (
	argQueueType     = "x-queue-type"
	argSingleActive  = "x-single-active-consumer"
	argDeliveryLimit = "x-delivery-limit"
)

// deliveryLimit is that of queues that we make. It is finite, so that a quorum queue puts what is returned to its front
// instead of its end, and no connection is lost so often: RabbitMQ 4 gives queues without one a limit of 20, above which
// it drops messages.
const deliveryLimit = 1_000_000

// QueueArguments returns the arguments of a queue that Declare makes: a quorum queue, so that a message is kept by most
// of the cluster's nodes, with a delivery limit that is never reached.
func QueueArguments(singleActive bool) map[string]any {
	arguments := map[string]any{argQueueType: "quorum", argDeliveryLimit: int64(deliveryLimit)}
	if singleActive {
		arguments[argSingleActive] = true
	}
	return arguments
}

// ensureQueue makes sure that the queue is there. AMQP tells nobody how a queue was made: only a declaration, which needs
// the right to make it, is compared with it.
func (r *Receiver) ensureQueue(c *conn) error {
	var err error
	if r.receive.Topology == Declare {
		err = r.declare(c)
	} else {
		_, err = inspect(c, r.receive.Queue)
	}
	if err != nil {
		return r.receive.queueError(err)
	}
	return nil
}

// inspect looks the queue up on a channel of its own, which the broker closes where there is none.
func inspect(c *conn, name string) (amqp.Queue, error) {
	channel, err := c.Channel()
	if err != nil {
		return amqp.Queue{}, err //nolint:wrapcheck // classified by the caller
	}
	// What else is given is not looked at where the declaration is passive.
	q, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil {
		return amqp.Queue{}, err //nolint:wrapcheck // classified by the caller
	}
	return q, channel.Close()
}

// declare makes the queue, or compares it with the one that is there: the broker closes the channel where they differ.
func (r *Receiver) declare(c *conn) error {
	channel, err := c.Channel()
	if err != nil {
		return err //nolint:wrapcheck // classified by the caller
	}
	_, err = channel.QueueDeclare(r.receive.Queue, true, false, false, false, QueueArguments(r.receive.SingleActive))
	if err != nil {
		return err //nolint:wrapcheck // classified by the caller
	}
	for _, b := range r.receive.Bindings {
		if err := channel.QueueBind(r.receive.Queue, b.RoutingKey, b.Exchange, false, nil); err != nil {
			return r.bindError(b.Exchange, err)
		}
	}
	return channel.Close() //nolint:wrapcheck // classified by the caller
}

func (r *Receiver) bindError(exchange string, err error) error {
	var said *amqp.Error
	switch {
	case !errors.As(err, &said):
		return lost(err)
	case said.Code == amqp.NotFound:
		return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: broker.Bounded("exchange " + exchange +
			" is missing: rabbitmqadmin declare exchange name=" + exchange + " type=topic durable=true")}
	case said.Code == amqp.AccessRefused:
		return &broker.Error{
			Reason: broker.ReasonPermissionDenied,
			Detail: broker.Bounded("the user may not bind queue " +
				r.receive.Queue + " to exchange " + exchange + ": grant it write on the queue and read on the exchange"),
		}
	}
	return lost(err)
}

// queueError says what the broker's word on the queue means, in words of ours.
func (c ReceiverConfig) queueError(err error) error {
	var known *broker.Error
	var said *amqp.Error
	switch {
	case errors.As(err, &known):
		return known
	case !errors.As(err, &said):
		return lost(err)
	}
	name := c.Queue
	switch said.Code {
	case amqp.NotFound:
		return c.missing()
	case amqp.AccessRefused:
		return &broker.Error{Reason: broker.ReasonPermissionDenied, Detail: broker.Bounded(
			"the user may not use queue " + name + ": grant it read on the queue, and configure where topology is Declare",
		)}
	case amqp.ResourceLocked:
		return c.mismatch("belongs to another connection alone: make a durable one that is not exclusive")
	case amqp.PreconditionFailed:
		return c.mismatch(
			"was made with other " + differing(said.Reason) + " than Declare makes it: choose topology: Verify " +
				"to use it as it is, or another queue",
		)
	case amqp.NotImplemented:
		return c.mismatch("is of a type that cannot be consumed so: make a quorum queue")
	}
	return lost(err)
}

// differing names what the broker says two declarations differ in, where we know its word.
func differing(reason string) string {
	for _, argument := range [...]string{argQueueType, argSingleActive, argDeliveryLimit, "durable", "auto_delete"} {
		if strings.Contains(reason, "arg '"+argument+"'") {
			return argument
		}
	}
	return "arguments"
}

func (c ReceiverConfig) missing() *broker.Error {
	arguments := `{"x-queue-type":"quorum","x-delivery-limit":` + strconv.Itoa(deliveryLimit)
	if c.SingleActive {
		arguments += `,"x-single-active-consumer":true`
	}
	return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: broker.Bounded("queue " + c.Queue +
		" is missing: rabbitmqadmin declare queue name=" + c.Queue + " durable=true arguments='" + arguments +
		"}' and bind it, or set topology: Declare")}
}

func (c ReceiverConfig) mismatch(detail string) *broker.Error {
	return &broker.Error{
		Reason: broker.ReasonStreamMismatch, Detail: broker.Bounded("queue " + c.Queue + " " + detail),
	}
}

// lost says why there is no connection any more.
func lost(err error) *broker.Error {
	var said *amqp.Error
	switch {
	case !errors.As(err, &said) || said == nil:
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: "the connection to RabbitMQ ended"}
	case said.Code == amqp.PreconditionFailed:
		return &broker.Error{Reason: broker.ReasonBrokerError, Detail: "RabbitMQ closed the channel (406)"}
	default:
		return stateOf(said)
	}
}

// live waits for a subscription, or for what keeps us from one.
func (r *Receiver) live(ctx context.Context) (*subscription, error) {
	for {
		r.mu.Lock()
		s, err, changed := r.sub, r.err, r.changed
		if r.closed {
			err = errClosed
		}
		r.mu.Unlock()
		if err != nil || s != nil {
			return s, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, noAnswer(ctx)
		}
	}
}

// Check says whether the queue is usable (the error is *broker.Error) and what about it may hurt later.
func (r *Receiver) Check(ctx context.Context) ([]broker.Warning, error) {
	_, err := r.live(ctx)
	warnings := r.notes.Warnings(r.now())
	if r.receive.SingleActive && r.receive.Topology == Verify {
		warnings = append(warnings, broker.Warning{
			Reason: broker.WarnUnchecked, Detail: broker.Bounded("whether queue " + r.receive.Queue +
				" has a single active consumer and a finite delivery limit is not checked: topology: Declare checks it"),
		})
	}
	return warnings, err
}

// Lag returns what the queue holds for any consumer, and what this one has not acknowledged. What other processes hold
// of the queue is not told to it, nor how old anything is.
func (r *Receiver) Lag(ctx context.Context) (broker.Lag, error) {
	s, err := r.live(ctx)
	if err != nil {
		return broker.Lag{}, err
	}
	type answer struct {
		queue amqp.Queue
		err   error
	}
	answers := make(chan answer, 1)
	select {
	case r.asking <- struct{}{}: // one at a time: the library waits for as long as the connection lasts
	case <-ctx.Done():
		return broker.Lag{}, noAnswer(ctx)
	}
	go func() {
		q, err := inspect(s.conn, r.receive.Queue)
		<-r.asking
		answers <- answer{q, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return broker.Lag{}, r.receive.queueError(a.err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return broker.Lag{Messages: int64(a.queue.Messages) + int64(len(s.open))}, nil
	case <-ctx.Done():
		return broker.Lag{}, noAnswer(ctx)
	}
}

func noAnswer(ctx context.Context) *broker.Error {
	return &broker.Error{Reason: broker.ReasonNoAnswer, Detail: "RabbitMQ did not answer in time", Err: ctx.Err()}
}

// Waiting returns how many messages a queue holds that no consumer has been given. It takes none and makes nothing.
func Waiting(ctx context.Context, cfg Config, queue string) (int64, error) {
	if err := cfg.Validate(); err != nil {
		return 0, err
	}
	c, state := dial(ctx, &cfg, "", time.Now)
	if state != nil {
		return 0, state
	}
	defer c.cut()
	stop := context.AfterFunc(ctx, c.cut)
	q, err := inspect(c, queue)
	if !stop() {
		return 0, noAnswer(ctx)
	}
	if err != nil {
		return 0, ReceiverConfig{Queue: queue}.queueError(err)
	}
	_ = c.Close() // it has said what was asked
	return int64(q.Messages), nil
}
