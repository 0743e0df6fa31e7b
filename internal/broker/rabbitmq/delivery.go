package rabbitmq

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/message"
)

// Headers by which the broker speaks of a delivery, and not its producer of the message.
const (
	headerDeliveryCount = "x-delivery-count" // deliveries before this one; quorum queues only
	headerAcquiredCount = "x-acquired-count"
	headerStreamOffset  = "x-stream-offset"
	headerDeaths        = "x-death" // what became of the message in other queues, and in this one before
)

// delivery is one message in our hands. The receiver's lock guards it.
type delivery struct {
	sub        *subscription
	raw        amqp.Delivery // until it is handed out
	tag        uint64
	deliveries int
	out        bool      // handed out
	told       bool      // the caller has had its say
	settled    bool      // at the broker, or on its way there
	due        time.Time // when it is returned
}

// Ack implements broker.Acknowledger. It is sent soon; see Receiver for one that is lost.
func (d *delivery) Ack(context.Context) error {
	return d.settle(func(s *subscription) {
		d.settled = true
		s.acked = append(s.acked, d)
	})
}

// Release implements broker.Acknowledger.
func (d *delivery) Release(_ context.Context, pause time.Duration) error {
	return d.settle(func(s *subscription) {
		now := s.r.now()
		if s.r.receive.SingleActive {
			s.given = true
			if until := now.Add(pause); until.After(s.until) {
				s.until = until
			}
			return
		}
		d.due = now.Add(max(pause, returnPause(d.deliveries)))
		s.waiting = append(s.waiting, d)
	})
}

// InProgress implements broker.Acknowledger. RabbitMQ only asks that a message is settled within its consumer_timeout,
// half an hour by default; where it is not, the subscription is made again and the message comes again.
func (d *delivery) InProgress(context.Context) error { return nil }

// settle takes the caller's last word on the delivery, once. For one of a subscription that is no more there is nobody
// to tell: it comes again.
func (d *delivery) settle(say func(*subscription)) error {
	r := d.sub.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.told {
		return nil
	}
	d.told = true
	r.out--
	r.wake() // there is room
	if !d.sub.dead {
		say(d.sub)
		r.nudge()
	}
	return nil
}

// returnPause is the least pause of a message that has come so often: a handler that gives it back at once makes no hot
// loop.
func returnPause(deliveries int) time.Duration {
	if deliveries < 2 {
		return 0
	}
	pause := firstReturn
	for range min(deliveries-2, 10) {
		pause = min(2*pause, longestReturn)
	}
	return pause
}

// deliveriesOf counts how often the broker has handed out the message from the queue, this time included. Classic
// queues tell only whether it came before.
func deliveriesOf(queue string, raw *amqp.Delivery) int {
	before := 0
	if raw.Redelivered {
		before = 1
	}
	if n, ok := integer(raw.Headers[headerDeliveryCount]); ok {
		before = max(before, int(n))
	}
	deaths, _ := raw.Headers[headerDeaths].([]any)
	for _, entry := range deaths { // a dead-letter exchange may lead back to the queue
		death, _ := entry.(amqp.Table)
		n, ok := integer(death["count"])
		if ok && death["queue"] == queue && (death["reason"] == "rejected" || death["reason"] == "delivery_limit") {
			before += int(n)
		}
	}
	return before + 1
}

// integer reads a number of any width of AMQP's, where it is one that counts something.
func integer(value any) (int64, bool) {
	var n int64
	switch v := value.(type) {
	case int64:
		n = v
	case int32:
		n = int64(v)
	case int16:
		n = int64(v)
	case int8:
		n = int64(v)
	case byte:
		n = int64(v)
	default:
		return 0, false
	}
	return n, n >= 0 && n <= 1<<31-1
}

// recordOf returns the message as a record. RabbitMQ has no record key. Headers are sorted: the library holds them in a
// map. What the broker itself says of the delivery is left out, or a redelivery would be another record.
func recordOf(raw *amqp.Delivery) message.Record {
	rec := message.Record{Body: raw.Body}
	if len(raw.Headers) == 0 {
		return rec
	}
	rec.Headers = make([]message.Header, 0, len(raw.Headers))
	for name, value := range raw.Headers {
		switch name {
		case headerDeliveryCount, headerAcquiredCount, headerStreamOffset, headerDeaths:
			continue
		}
		if text, ok := text(value); ok {
			rec.Headers = append(rec.Headers, message.Header{Name: name, Value: text})
		}
	}
	slices.SortFunc(rec.Headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	return rec
}

// text returns a header's value as text. Lists and tables have no such form and are left out.
func text(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case bool:
		return strconv.FormatBool(v), true
	case int, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	default:
		return "", false
	}
}

// positionOf names a message's place: RabbitMQ numbers nothing, so it is the queue, where the message was sent and the
// id that its producer gave it, the same each time that it comes.
func positionOf(queue string, raw *amqp.Delivery) string {
	position := queue + "<" + printable(raw.Exchange) + "/" + printable(raw.RoutingKey)
	if raw.MessageId != "" {
		position += "#" + printable(raw.MessageId)
	}
	return position
}

// printable returns a text of the remote end's as something that can stand in a line: names as they mostly are, others
// in base64.
func printable(s string) string {
	if strings.ContainsFunc(s, odd) {
		return base64.RawURLEncoding.EncodeToString([]byte(s))
	}
	return s
}
