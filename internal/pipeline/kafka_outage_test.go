package pipeline_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/test/testkit"
)

// G7 on a real Kafka: a partition whose only replica is on a node that is killed is down for longer than the whole
// budget, while the others flow. Its messages wait, and none of them is given up.
func TestG7AKafkaPartitionThatIsDownForLongerThanTheBudgetMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	const elapsed = 2 * time.Second
	server := testkit.KafkaCluster(t)
	topic := server.PlacedTopic(nil, []int32{1}, []int32{3}, []int32{2})
	o := newOrders(t)
	cfg := o.toKafka(topic, server.Addrs()...)
	cfg.Budget.MaxAttempts, cfg.Budget.MaxElapsed = 2, config.Duration(elapsed)
	_, life := o.start(cfg)
	const round = 27 // three messages of each key
	o.write(round)
	o.published(round)
	lost := testkit.Value[int](o.db,
		`SELECT count(*) FROM message_outbox_published WHERE broker_position LIKE $1`, topic+"/2@%")
	if lost == 0 || lost == round {
		t.Fatalf("%d of %d messages go to the partition that will be down: this test shows nothing", lost, round)
	}

	server.Kill(2)
	down, rounds := time.Now(), 1
	for time.Since(down) < 4*elapsed || rounds < 4 {
		o.write(round)
		rounds++
		o.published(round + (rounds-1)*(round-lost)) // the others flow
	}
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_outbox`); n != (rounds-1)*lost {
		t.Errorf("%d messages wait, want the %d of the partition that is down", n, (rounds-1)*lost)
	}

	server.Start(2)
	o.published(rounds * round)
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_failure`); n != 0 {
		t.Errorf("%d dead letters of healthy messages", n)
	}
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM (
		SELECT split_part(broker_position, '@', 2)::bigint - lag(split_part(broker_position, '@', 2)::bigint)
		  OVER (PARTITION BY ordering_key ORDER BY aggregate_version) AS step FROM message_outbox_published) x
		WHERE step <= 0`); n != 0 {
		t.Errorf("%d messages are at a place before the message before them (%d rounds)", n, rounds)
	}
	if err := life.drain(); err != nil {
		t.Errorf("Run() = %v", err)
	}
}
