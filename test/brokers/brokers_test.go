package brokers

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

func mustListen(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			t.Errorf("the server does not listen: %v", err)
			continue
		}
		_ = conn.Close()
	}
}

func mustNotListen(t *testing.T, address string) {
	t.Helper()
	if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		_ = conn.Close()
		t.Errorf("%s takes connections after the server's end", address)
	}
}

func TestKafkaStartsKillsAndStops(t *testing.T) {
	t.Parallel()
	k, err := StartKafka(within(t, 5*time.Minute), KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	mustListen(t, k.Addr(), k.SASLAddr(), k.MTLSAddr())
	if err := k.Kill(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustNotListen(t, k.Addr())
	if err := k.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustListen(t, k.Addr())
	if err := k.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustNotListen(t, k.Addr())
	if _, err := os.Stat(k.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}

func TestAKafkaClusterLosesNodesAndStops(t *testing.T) {
	t.Parallel()
	c, err := StartKafkaCluster(within(t, 5*time.Minute), KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	mustListen(t, c.Addrs()...)
	for id := 2; id <= KafkaNodes; id++ {
		if err := c.Node(id).Kill(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		mustNotListen(t, c.Node(id).Addr())
	}
	if err := c.Node(KafkaNodes).Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustListen(t, c.Node(1).Addr(), c.Node(KafkaNodes).Addr())
	if err := c.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= KafkaNodes; id++ {
		mustNotListen(t, c.Node(id).Addr())
		if _, err := os.Stat(c.Node(id).dir); !os.IsNotExist(err) {
			t.Errorf("the folder of node %d is left: %v", id, err)
		}
	}
}

func TestRabbitMQStartsKillsAndStops(t *testing.T) {
	t.Parallel()
	r, err := StartRabbitMQ(within(t, 5*time.Minute), RabbitMQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	mustListen(t, r.Addr(), r.TLSAddr())
	got, err := r.Eval(
		within(t, time.Minute),
		`rabbit_vhost:add(<<"one">>, <<"test">>), rabbit_vhost:exists(<<"one">>)`,
	)
	if err != nil || got != "true" {
		t.Errorf("Eval() = %q, %v; want true", got, err)
	}
	if err := r.Kill(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustNotListen(t, r.Addr())
	if err := r.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	got, err = r.Eval(within(t, time.Minute), `rabbit_vhost:exists(<<"one">>)`)
	if err != nil || got != "true" {
		t.Errorf("after a restart Eval() = %q, %v; want true", got, err)
	}
	epmd := address(r.ports.epmd)
	mustListen(t, epmd)
	if err := r.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	mustNotListen(t, r.Addr())
	mustNotListen(t, epmd)
	if _, err := os.Stat(r.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}
