package rabbitmq

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/message"
)

func TestDeliveriesAreCounted(t *testing.T) {
	t.Parallel()
	death := func(queue, reason string, n any) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "count": n}
	}
	cases := map[string]struct {
		redelivered bool
		headers     amqp.Table
		want        int
	}{
		"for the first time":              {false, nil, 1},
		"again, from a classic queue":     {true, nil, 2},
		"again, from a quorum queue":      {true, amqp.Table{headerDeliveryCount: int64(4)}, 5},
		"a count in another width":        {true, amqp.Table{headerDeliveryCount: int32(1)}, 2},
		"a count that a producer made up": {false, amqp.Table{headerDeliveryCount: "many"}, 1},
		"a negative count":                {false, amqp.Table{headerDeliveryCount: int64(-3)}, 1},
		"through a dead-letter exchange": {
			false,
			amqp.Table{headerDeaths: []any{death("q", "rejected", int64(2))}},
			3,
		},
		"dead in another queue": {
			false,
			amqp.Table{headerDeaths: []any{death("p", "rejected", int64(2))}},
			1,
		},
		"waited in this queue for its time": {
			false,
			amqp.Table{headerDeaths: []any{death("q", "expired", int64(2))}},
			1,
		},
		"deaths that are no table": {false, amqp.Table{headerDeaths: []any{"q", nil}}, 1},
		"deaths that are no list":  {false, amqp.Table{headerDeaths: "q"}, 1},
		"deaths without a number in their count": {
			false,
			amqp.Table{headerDeaths: []any{death("q", "rejected", "2")}},
			1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := deliveriesOf(
				"q",
				&amqp.Delivery{Redelivered: tc.redelivered, Headers: tc.headers},
			); got != tc.want {
				t.Errorf("deliveriesOf() = %d, want %d", got, tc.want)
			}
		})
	}
}

// A redelivery must be the same record at the same place: the name of an unreadable dead letter is made of both.
func TestARedeliveryIsTheSameRecord(t *testing.T) {
	t.Parallel()
	raw := amqp.Delivery{
		Exchange:   "shop",
		RoutingKey: "orders.events",
		MessageId:  "4711",
		Body:       []byte("body"),
		Headers: amqp.Table{
			"text":  "a",
			"bytes": []byte("b"),
			"count": int32(3),
			"flag":  true,
			"part":  0.5,
			"list":  []any{1},
		},
	}
	again := raw
	again.Redelivered, again.DeliveryTag = true, 9
	again.Headers = amqp.Table{headerDeliveryCount: int64(1), headerAcquiredCount: int64(2), headerDeaths: []any{}}
	maps.Copy(again.Headers, raw.Headers)
	first, second := recordOf(&raw), recordOf(&again)
	if !reflect.DeepEqual(first, second) {
		t.Errorf("first %v, then %v", first, second)
	}
	want := []message.Header{
		{Name: "bytes", Value: "b"},
		{Name: "count", Value: "3"},
		{Name: "flag", Value: "true"},
		{Name: "part", Value: "0.5"},
		{Name: "text", Value: "a"},
	}
	if !reflect.DeepEqual(first.Headers, want) {
		t.Errorf("headers %v, want %v", first.Headers, want)
	}
	if got := positionOf("q", &again); got != "q<shop/orders.events#4711" || got != positionOf("q", &raw) {
		t.Errorf("position %q", got)
	}
	foreign := positionOf("q", &amqp.Delivery{RoutingKey: "a\nb\x00", MessageId: strings.Repeat("ö", 4)})
	if strings.ContainsFunc(foreign, odd) {
		t.Errorf("position %q repeats what cannot stand in a line", foreign)
	}
}

func TestAMessageThatKeepsComingIsReturnedEverLater(t *testing.T) {
	t.Parallel()
	want := []time.Duration{0, 0, firstReturn, 2 * firstReturn, 4 * firstReturn}
	for deliveries, pause := range want {
		if got := returnPause(deliveries); got != pause {
			t.Errorf("returnPause(%d) = %s, want %s", deliveries, got, pause)
		}
	}
	if got := returnPause(1 << 30); got != longestReturn {
		t.Errorf("returnPause(many) = %s, want %s", got, longestReturn)
	}
}
