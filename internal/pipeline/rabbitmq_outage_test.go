package pipeline_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// G7 on a real RabbitMQ: the queue loses its binding for longer than the whole budget. The broker confirms what it
// drops; nothing counts as published, no message is given up, and all of them arrive once the queue is bound again.
func TestG7ARabbitMQQueueThatIsUnboundForLongerThanTheBudgetMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	const elapsed = time.Second
	server := testkit.RabbitMQ(t)
	channel := exchange(t, server)
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	bind := func() {
		t.Helper()
		if err := channel.QueueBind("orders", "orders.#", "shop", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	bind()
	o := newOrders(t)
	to := rabbit(t, server)
	to.Exchange, to.RoutingKey = "shop", "orders.events"
	cfg := o.cfg
	cfg.NATS, cfg.RabbitMQ = nil, &to
	cfg.Lease, cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	cfg.Budget.MaxAttempts, cfg.Budget.MaxElapsed = 2, config.Duration(elapsed)
	_, life := o.start(cfg)
	o.write(9)
	o.published(9)

	if err := channel.QueueUnbind("orders", "orders.#", "shop", nil); err != nil {
		t.Fatal(err)
	}
	unbound := time.Now()
	o.write(90)
	life.becomes("BrokerReachable", "False StreamMissing")
	testkit.Eventually(t, patience, "the budget is over", func() bool { return time.Since(unbound) > 4*elapsed })
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_outbox WHERE attempts = 0`); n != 90 {
		t.Errorf("%d messages wait without an attempt, want 90", n)
	}

	bind()
	o.published(99)
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Errorf("%d dead letters of healthy messages", n)
	}
	queue, err := channel.QueueDeclarePassive("orders", true, false, false, false, nil)
	if err != nil || queue.Messages != 99 {
		t.Errorf("the queue holds %d messages (%v), want 99", queue.Messages, err)
	}
	if err := life.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}
